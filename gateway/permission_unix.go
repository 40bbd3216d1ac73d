//go:build unix

package gateway

import (
	"os"
	"syscall"
)

// ownerOf returns the user and the group that own a file, -1 if unknown.
func ownerOf(info os.FileInfo) (uid, gid int) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, -1
	}
	return int(st.Uid), int(st.Gid)
}
