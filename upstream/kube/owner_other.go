//go:build !unix

package kube

import "io/fs"

// checkOwner cannot look here.
func checkOwner(fs.FileInfo) error { return nil }
