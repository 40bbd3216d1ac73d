//go:build unix

package kube_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/upstream/kube"
)

// ofUser is a file of another user than it is.
type ofUser struct {
	fs.FileInfo
	uid uint32
}

func (f ofUser) Sys() any { return &syscall.Stat_t{Uid: f.uid} }

// TestOwnerOfCache: the owner of the file may write to it, so it must be this user or root.
func TestOwnerOfCache(t *testing.T) {
	info, err := os.Stat(write(t, filepath.Join(t.TempDir(), "kept.json"), "{}"))
	if err != nil {
		t.Fatal(err)
	}
	self := uint32(os.Geteuid())
	for _, c := range []struct {
		info fs.FileInfo
		good bool
	}{{info, true}, {ofUser{info, self}, true}, {ofUser{info, 0}, true}, {ofUser{info, self + 1}, false}} {
		if err := kube.CheckOwner(c.info); (err == nil) != c.good {
			t.Errorf("owner %v: %v", c.info.Sys(), err)
		}
	}
	if os.Geteuid() != 0 {
		return // only root can give a file away
	}
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	cfg := a.config(t)
	cfg.Cache = filepath.Join(t.TempDir(), "kept.json")
	cfg.Bootstrap = []string{"10.0.0.7:6443"}
	w := watch(t, cfg)
	w.Until("10.0.0.1:6443")
	w.End()
	if err := os.Chown(cfg.Cache, 4242, -1); err != nil {
		t.Fatal(err)
	}
	cfg.Server = "127.0.0.1:1" // no server is there
	w = watch(t, cfg)
	if r := w.Wants("!"); !strings.Contains(r.Err.Error(), "belongs to another user (4242)") {
		t.Error(r.Err)
	}
	w.Wants("10.0.0.7:6443")
}
