package cli

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// watchInterval is how often files are looked at. A change is taken up when it has stayed for one interval: a file that is written in
// place may be half written.
const watchInterval = time.Second

// watcher follows a configuration file and the files that it names. It looks at them instead of having the kernel report changes:
// that finds every kind of change (another target of a symbolic link on the path, as in volumes of Kubernetes; a rename; a network
// file system). It never opens pipes, whose data is for the reload.
type watcher struct {
	file   string
	names  []string          // of the files that are watched
	looked string            // what the last look has shown
	moved  bool              // the last look differed from the one before
	loaded [sha256.Size]byte // of the content that a reload was asked for last, or that the gateway started with
}

// newWatcher returns a watcher for which the present content of the files is no change.
func newWatcher(file string) *watcher {
	w := &watcher{file: file}
	w.loaded = w.read()
	return w
}

// read reads which files there are, and returns a hash of their content.
func (w *watcher) read() [sha256.Size]byte {
	w.names = config.FilesOf(w.file)
	w.looked = look(w.names)
	h := sha256.New()
	for _, name := range w.names {
		var data []byte
		info, err := os.Stat(name)
		if err == nil && info.Mode().IsRegular() {
			data, err = config.Path(name).Read()
		}
		_, _ = fmt.Fprintf(h, "%s %d %v\n%s", name, len(data), err, data)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// look describes files without reading them.
func look(names []string) string {
	var b strings.Builder
	for _, name := range names {
		if info, err := os.Stat(name); err != nil {
			_, _ = fmt.Fprintf(&b, "%v\n", err)
		} else {
			_, _ = fmt.Fprintf(&b, "%s %d %v %v\n", name, info.Size(), info.Mode(), info.ModTime())
		}
	}
	return b.String()
}

// changed looks at the files, and reports whether their content has changed and two looks have shown the same.
func (w *watcher) changed() bool {
	now := look(w.names)
	if now != w.looked {
		w.looked, w.moved = now, true
		return false
	}
	if !w.moved {
		return false
	}
	w.moved = false
	before := w.loaded
	w.loaded = w.read()
	return w.loaded != before
}

// run asks for a reload at each change, until ctx ends. It may block in a file system that does not answer.
func (w *watcher) run(ctx context.Context, reloads chan<- os.Signal) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if w.changed() {
			select {
			case reloads <- syscall.SIGHUP:
			default: // a reload is about to begin
			}
		}
	}
}
