//go:build !unix

package cli

import "os"

// notifyUpgrade does nothing: sockets cannot be inherited on this system.
func notifyUpgrade(chan<- os.Signal) {}
