package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// roomy is the free space that shared memory must have for clusters: many packages test at the same time, and a cluster
// takes 40 MB and what its test writes. Containers often have 64 MB in all.
const roomy = 4 << 30

// memoryDir returns the directory of shared memory, or "" if there is none with enough space in which everyone may write.
func memoryDir() string {
	const dir = "/dev/shm"
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < roomy {
		return ""
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o002 == 0 {
		return ""
	}
	return dir
}

// hold locks a cluster's directory until the file is closed or this process ends, however it ends.
func hold(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// removeAbandoned removes the directories in dir of clusters whose process was killed, as after a test's timeout: they
// would take memory until the system restarts. A directory younger than a minute may not be locked yet. Errors are
// ignored, since others' directories cannot be opened.
func removeAbandoned(dir string) {
	old, _ := filepath.Glob(filepath.Join(dir, clusterPrefix+"*"))
	for _, cluster := range old {
		if made, err := os.Stat(cluster); err != nil || time.Since(made.ModTime()) < time.Minute {
			continue
		}
		if lock, err := hold(cluster); err == nil {
			_ = removeSegment(filepath.Join(cluster, "data", "postmaster.pid"))
			_ = os.RemoveAll(cluster)
			_ = lock.Close()
		}
	}
}
