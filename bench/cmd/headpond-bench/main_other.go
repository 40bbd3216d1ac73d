//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	_, _ = fmt.Fprintln(os.Stderr, "headpond-bench: needs Linux: it reads what processes cost from /proc and asks by epoll")
	os.Exit(1)
}
