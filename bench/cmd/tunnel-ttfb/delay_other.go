//go:build !linux

package main

import (
	"errors"
	"time"
)

func delay(time.Duration, string, string) error { return errors.ErrUnsupported }
