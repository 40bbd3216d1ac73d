//go:build unix

package logfile

import "golang.org/x/sys/unix"

// mayCreateIn returns why no file can be made in a folder.
func mayCreateIn(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }
