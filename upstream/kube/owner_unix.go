//go:build unix

package kube

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner refuses a file that belongs neither to this process's user nor to root, whatever its mode: its owner may write to it.
func checkOwner(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() || st.Uid == 0 {
		return nil
	}
	return fmt.Errorf("it belongs to another user (%d)", st.Uid)
}
