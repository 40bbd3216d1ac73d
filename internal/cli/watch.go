package cli

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
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
	looked []look            // what the last look has shown
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
	w.looked = lookAt(w.names)
	h := sha256.New()
	for _, name := range w.names {
		data, err := config.Path(name).ReadRegular()
		_, _ = fmt.Fprintf(h, "%s %d %v\n%s", name, len(data), err, data)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// look is what can be seen of a file without reading it.
type look struct {
	info os.FileInfo // nil: none
	err  string
}

func lookAt(names []string) (all []look) {
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			all = append(all, look{err: err.Error()})
			continue
		}
		all = append(all, look{info: info})
	}
	return all
}

// same reports whether l shows what o does. Another file may have the same size and time, such as all files of some packages.
func (l look) same(o look) bool {
	if l.info == nil || o.info == nil {
		return l == o
	}
	return os.SameFile(l.info, o.info) && l.info.Size() == o.info.Size() && l.info.Mode() == o.info.Mode() && l.info.ModTime().Equal(o.info.ModTime())
}

// changed looks at the files, and reports whether their content has changed and two looks have shown the same.
func (w *watcher) changed() bool {
	now := lookAt(w.names)
	if !slices.EqualFunc(now, w.looked, look.same) {
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
