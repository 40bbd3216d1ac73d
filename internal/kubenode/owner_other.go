//go:build !unix

package kubenode

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: on this system the directory determines the owner.
func keepOwner(*os.File, fs.FileInfo) error { return nil }
