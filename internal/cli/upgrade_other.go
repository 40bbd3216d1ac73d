//go:build !unix

package cli

import "os"

func closeOnExec(int) {}

// notifyUpgrade does nothing: sockets cannot be inherited on this system.
func notifyUpgrade(chan<- os.Signal) {}
