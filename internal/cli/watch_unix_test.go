//go:build unix

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const watchedFile = `admin: 127.0.0.1:0
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: pg, postgres: {auth: trust}}
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: tcp}
upstreams:
  pg: {endpoints: ["127.0.0.1:1"], postgres: {user: u, password: "file:secret"}}
  tcp: {discover: {file: endpoints}}
`

// volume is a folder as Kubernetes mounts a ConfigMap: its files are links through ..data, which is replaced as a whole.
type volume struct{ dir, file string }

// newVolume makes a volume with one file for each pair of name and text.
func newVolume(t *testing.T, files map[string]string) *volume {
	t.Helper()
	v := &volume{dir: t.TempDir()}
	v.file = filepath.Join(v.dir, "headpond.yaml")
	v.put(t, "1", files)
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(v.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// put replaces all files; version is a new name.
func (v *volume) put(t *testing.T, version string, files map[string]string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(v.dir, version), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(v.dir, version, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(v.dir, "new")
	if err := os.Symlink(version, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(v.dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// none and one are how many of four looks report a change: it has to stay for one look.
const none, one = "- - - -", "- change - -"

// wantChanges looks at the files four times.
func wantChanges(t *testing.T, w *watcher, want string) {
	t.Helper()
	got := ""
	for range 4 {
		if w.changed() {
			got += "change "
		} else {
			got += "- "
		}
	}
	if got = strings.TrimSpace(got); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWatchedLists: the lists that a pg_hba.conf names are watched, too.
func TestWatchedLists(t *testing.T) {
	files := map[string]string{
		"headpond.yaml": strings.Replace(watchedFile, "auth: trust", "auth_hba_file: hba.conf", 1), "secret": "a", "endpoints": "[127.0.0.1:2]",
		"hba.conf": "host all @names all trust", "names": "@more", "more": "alice",
	}
	v := newVolume(t, files)
	w := newWatcher(v.file)
	wantChanges(t, w, none)
	files["more"] = "alice, bob"
	v.put(t, "2", files)
	wantChanges(t, w, one)
}

// TestWatchedSameTime: another file in the place of one is a change, also with the same size and time.
func TestWatchedSameTime(t *testing.T) {
	files := map[string]string{"headpond.yaml": watchedFile, "secret": "a"}
	v := newVolume(t, files)
	then := func(version string) {
		t.Helper()
		for name := range files {
			if err := os.Chtimes(filepath.Join(v.dir, version, name), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	then("1")
	w := newWatcher(v.file)
	files["secret"] = "b"
	v.put(t, "2", files)
	then("2")
	wantChanges(t, w, one)
}

// TestPipeIsNotWatched: a configuration in a pipe is left for the gateway.
func TestPipeIsNotWatched(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(file, os.O_RDWR, 0) // does not wait for the other end
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	if _, err := pipe.WriteString(watchedFile); err != nil {
		t.Fatal(err)
	}
	wantChanges(t, newWatcher(file), none)
	got := make([]byte, len(watchedFile))
	if _, err := io.ReadFull(pipe, got); err != nil || string(got) != watchedFile {
		t.Errorf("%q, %v is left in the pipe", got, err)
	}
}

// TestWatchedFiles: a change counts once, when it has stayed for one look.
func TestWatchedFiles(t *testing.T) {
	files := map[string]string{"headpond.yaml": watchedFile, "secret": "a", "endpoints": "[127.0.0.1:2]"}
	v := newVolume(t, files)
	w := newWatcher(v.file)
	changes := func(want string) {
		t.Helper()
		wantChanges(t, w, want)
	}
	changes(none)
	v.put(t, "2", files) // the same content
	changes(none)
	files["secret"] = "b"
	v.put(t, "3", files)
	changes(one)
	files["endpoints"] = "[127.0.0.1:3]" // which its upstream follows
	v.put(t, "4", files)
	changes(none)
	files["headpond.yaml"] = strings.Replace(watchedFile, "file:secret", "file:other", 1) // of which there is none yet
	v.put(t, "5", files)
	changes(one)
	if err := os.WriteFile(filepath.Join(v.dir, "other"), []byte("c"), 0o600); err != nil {
		t.Fatal(err)
	}
	changes(one)
	if err := os.Remove(filepath.Join(v.dir, "other")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(v.dir, "other"), 0o600); err != nil {
		t.Fatal(err)
	}
	changes(one) // without opening it
	files["headpond.yaml"] = "listeners: ["
	v.put(t, "6", files)
	changes(one)
}

// TestServeWatches: the gateway follows a volume, and keeps its configuration while the file is wrong.
func TestServeWatches(t *testing.T) {
	files := map[string]string{"headpond.yaml": watchedFile, "secret": "a", "endpoints": "[127.0.0.1:2]"}
	v := newVolume(t, files)
	p := startProcess(t, "", "serve", "-watch", v.file)
	p.until(t, "admin page")
	files["headpond.yaml"] = strings.Replace(watchedFile, "user: u", "usr: u", 1)
	v.put(t, "2", files)
	p.until(t, "reload refused")
	files["headpond.yaml"] = strings.Replace(watchedFile, "tcp: {", "added: {endpoints: [\"127.0.0.1:1\"]}\n  tcp: {", 1)
	v.put(t, "3", files)
	if line := p.until(t, "msg=reloaded"); !strings.Contains(line, "added") {
		t.Error(line)
	}
	files["secret"] = "b"
	v.put(t, "4", files)
	if line := p.until(t, "msg=reloaded"); !strings.Contains(line, "pg") {
		t.Error(line)
	}
	p.signal(t, syscall.SIGTERM)
	p.until(t, "msg=stopped")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}
