//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyUpgrade sends the signals that ask for an upgrade to c.
func notifyUpgrade(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }
