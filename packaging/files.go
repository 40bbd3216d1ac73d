package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// top is the repository's folder, seen from this module's.
const top = ".."

// The names of files below the folder that makeFiles writes.
const (
	programName  = "headpond"
	manualName   = "headpond.1.gz"
	licensesName = "third-party-licenses.txt"
	rootsName    = "ca-certificates.crt"
)

// completions are the files of the shells' completions in that folder.
var completions = map[string]string{"bash": "headpond.bash", "zsh": "_headpond", "fish": "headpond.fish"}

// makeFiles collects in o.out what packages and images have besides the files of the repository.
func makeFiles(o options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile(o.program)
	if err != nil {
		return err
	}
	runs := o.manual
	if runs == "" {
		runs = o.program
	}
	manual, err := exec.Command(runs, "manpage").Output() //nolint:gosec // our program
	if err != nil {
		return fmt.Errorf("%s manpage: %w", runs, err)
	}
	licenses, err := licenses(o.licenses)
	if err != nil {
		return err
	}
	texts := map[string][]byte{manualName: compressed(manual), licensesName: licenses, rootsName: roots()}
	for shell, name := range completions {
		if texts[name], err = exec.Command(runs, "completion", shell).Output(); err != nil { //nolint:gosec // our program
			return fmt.Errorf("%s completion %s: %w", runs, shell, err)
		}
	}
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(o.out, name), text, 0o644); err != nil { //nolint:gosec // public
			return err
		}
	}
	return os.WriteFile(filepath.Join(o.out, programName), program, 0o755) //nolint:gosec // a program
}

// compressed returns text as gzip -n9 compresses it.
func compressed(text []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, _ = w.Write(text) // a bytes.Buffer does not fail
	_ = w.Close()
	return b.Bytes()
}

// licenses returns the licences of the modules in a list with a line for each linked package: module, version, folder of the
// module, folder of the package. A module without a licence is an error.
func licenses(list string) ([]byte, error) {
	lines, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	folders := map[string][]string{} // by "module version"; that of the module first
	for line := range strings.Lines(string(lines)) {
		f := strings.Fields(line)
		if len(f) != 4 {
			return nil, fmt.Errorf("%s: %q: want four words", list, line)
		}
		module := f[0] + " " + f[1]
		for dir := f[3]; len(dir) > len(f[2]); dir = filepath.Dir(dir) {
			folders[module] = append(folders[module], dir)
		}
		folders[module] = append(folders[module], f[2])
	}
	if len(folders) == 0 {
		return nil, errors.New(list + ": no modules")
	}
	var b bytes.Buffer
	for _, module := range slices.Sorted(maps.Keys(folders)) {
		dirs := folders[module]
		slices.Sort(dirs)
		found := 0
		for _, dir := range slices.Compact(dirs) {
			n, err := appendLicenses(&b, module, dirs[0], dir)
			if err != nil {
				return nil, err
			}
			found += n
		}
		if found == 0 {
			return nil, fmt.Errorf("module %s has no licence in %s", module, dirs[0])
		}
	}
	return b.Bytes(), nil
}

// appendLicenses appends the files in dir that have a licence or a notice, and returns their number.
func appendLicenses(b *bytes.Buffer, module, root, dir string) (n int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !isLicense(e) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return n, err
		}
		rel, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
		if err != nil {
			return n, err
		}
		_, _ = fmt.Fprintf(b, "================ %s: %s\n\n%s\n\n", module, filepath.ToSlash(rel), bytes.TrimSpace(text))
		n++
	}
	return n, nil
}

// isLicense reports whether a file's name is one of those that licences have.
func isLicense(e fs.DirEntry) bool {
	name := strings.ToUpper(e.Name())
	if strings.HasSuffix(name, ".GO") {
		return false
	}
	return slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "PATENTS"}, func(s string) bool {
		return strings.HasPrefix(name, s)
	})
}
