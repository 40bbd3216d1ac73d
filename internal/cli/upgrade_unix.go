//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// closeOnExec keeps an inherited descriptor from the programs that this process starts.
func closeOnExec(fd int) { syscall.CloseOnExec(fd) }

// notifyUpgrade sends the signals that ask for an upgrade to c.
func notifyUpgrade(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }
