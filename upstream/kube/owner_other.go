//go:build !unix

package kube

import "io/fs"

// checkOwner accepts every file: its owner cannot be examined on this system.
func checkOwner(fs.FileInfo) error { return nil }
