package kubenode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Print prints the files. For a kubeconfig it prints only the changes.
func (files Files) Print(w io.Writer) error {
	var text bytes.Buffer
	for i, f := range files {
		if i > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "# %s (mode %04o)\n", f.Path, f.Mode)
		if f.Edit == nil {
			text.Write(f.Data)
			continue
		}
		for _, line := range f.Edit.lines() {
			fmt.Fprintf(&text, "#   %s\n", line)
		}
	}
	_, err := w.Write(text.Bytes())
	return err
}

// lines describe an edit.
func (e *Edit) lines() []string {
	lines := []string{fmt.Sprintf("cluster %q: server %s, was %s", e.Cluster, e.To, e.From)}
	if e.From == e.To {
		lines[0] = fmt.Sprintf("cluster %q: server %s, as it was", e.Cluster, e.To)
	}
	switch {
	case e.AddedName != "":
		lines = append(lines, fmt.Sprintf("cluster %q: tls-server-name %s, was none", e.Cluster, e.AddedName))
	case e.KeptName != "":
		lines = append(lines, fmt.Sprintf("cluster %q: tls-server-name %s, as it was", e.Cluster, e.KeptName))
	}
	return lines
}

// target is a file that Write makes.
type target struct {
	File
	path string
	done bool // the file needs no change
}

// Write writes the files below dir, each at its path; with dir "/" it changes the node itself. If an existing file
// other than the node's kubeconfigs differs, Write returns an error and writes nothing, unless force is set. Each file
// is replaced by a rename. It keeps its mode and, where it is replaced in place, its owner. Write reports its actions
// to w, without secrets.
func (files Files) Write(dir string, force bool, w io.Writer) error {
	targets, err := files.targets(dir, force)
	if err != nil {
		return err
	}
	for _, t := range targets {
		verb := "wrote"
		if t.done {
			verb = "kept"
		} else if err := t.write(); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s %s (mode %04o)\n", verb, t.path, t.Mode); err != nil {
			return err
		}
		if t.Edit != nil {
			for _, line := range t.Edit.lines() {
				if _, err := fmt.Fprintf(w, "  %s\n", line); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// targets checks existing files before anything is written.
func (files Files) targets(dir string, force bool) ([]target, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, f := range files {
		t := target{File: f, path: filepath.Join(dir, f.Path)}
		old, err := os.ReadFile(t.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case bytes.Equal(old, f.Data):
			t.done = true
		case f.Edit != nil && t.path == f.Path: // the kubeconfig to be changed
			if !bytes.Equal(old, f.before) {
				return nil, fmt.Errorf("%s was changed by another program just now; try again", t.path)
			}
		case !force:
			return nil, fmt.Errorf("%s is there and differs; -force replaces it", t.path)
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// write replaces a file atomically: readers see the old file or the new one.
func (t *target) write() (err error) {
	mode := fs.FileMode(0o755)
	if t.Edit != nil {
		mode = 0o700
	}
	if err := os.MkdirAll(filepath.Dir(t.path), mode); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(t.path), ".headpond-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(t.Data)
	if err == nil && t.original != nil && t.path == t.Path {
		err = keepOwner(f, t.original)
	}
	if err == nil {
		err = f.Chmod(t.Mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), t.path)
	}
	return err
}
