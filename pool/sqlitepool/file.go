package sqlitepool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// fileHeader is the beginning of every SQLite database (https://sqlite.org/fileformat.html).
const fileHeader = "SQLite format 3\x00"

// CheckPath returns the error that Open would return for the path, without creating or changing anything: ErrPath,
// ErrNotDatabase, fs.ErrNotExist for a missing directory, or the error of reading the file.
func CheckPath(path string) error {
	_, err := inspect(path)
	return err
}

// inspect returns an error with advice for unusable paths, and reports whether the database can
// only be read.
func inspect(path string) (readOnly bool, err error) {
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return false, fmt.Errorf("%w: %q: an in-memory database belongs to one connection; use a file, in a temporary directory if need be", ErrPath, path)
	}
	if strings.HasPrefix(path, "file:") {
		return false, fmt.Errorf("%w: %q: give a plain file path, not a URI", ErrPath, path)
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return false, fmt.Errorf("sqlitepool: directory of %q: %w; create it first", path, err)
	}
	if !dir.IsDir() {
		return false, fmt.Errorf("%w: %q: %s is not a directory", ErrPath, path, filepath.Dir(path))
	}
	if target, err := filepath.EvalSymlinks(path); err == nil && target != path { // the log is beside the target
		if dir, err = os.Stat(filepath.Dir(target)); err != nil {
			return false, fmt.Errorf("sqlitepool: directory of %q: %w", path, err)
		}
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("sqlitepool: %w", err)
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%w: %q is not a regular file", ErrPath, path)
	}
	if err := checkHeader(path); err != nil {
		return false, err
	}
	return !writable(path, info.Mode()) || dir.Mode().Perm()&0o222 == 0, nil
}

// writable reports whether the file system permits writing. A file without any write bit counts as
// read-only even for root.
func writable(path string, mode fs.FileMode) bool {
	if mode.Perm()&0o222 == 0 {
		return false
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), "read-only")
	}
	f.Close()
	return true
}

func checkHeader(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sqlitepool: %w", err)
	}
	defer f.Close()
	var head [len(fileHeader)]byte
	n, err := io.ReadFull(f, head[:])
	if n == 0 && errors.Is(err, io.EOF) {
		return nil // empty: a new database
	}
	if string(head[:n]) != fileHeader {
		return fmt.Errorf("%w: %q does not start like a SQLite database", ErrNotDatabase, path)
	}
	return nil
}
