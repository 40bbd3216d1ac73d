package hba

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Bounds of lists in other files. A list that names itself ends at the first.
const (
	maxDepth = 10 // as PostgreSQL 16 has it
	maxNames = 100_000
)

// expand returns the fields of a line with the lists of files, @file, in the place of their names. Only the fields of databases
// and users have such. dir is where relative paths begin.
func expand(fields []field, dir string, read Read) ([]field, error) {
	const afterNames = 3
	if read == nil {
		return fields, nil
	}
	out := append([]field(nil), fields...)
	for i := 1; i < min(len(out), afterNames); i++ {
		var err error
		if out[i], err = expandField(nil, out[i], dir, read, 0); err != nil {
			return nil, err
		}
		if len(out[i]) == 0 {
			return nil, fmt.Errorf("%q: there are no names in the file", clip(fields[i][0].text))
		}
	}
	return out, nil
}

// expandField appends the names of a field to out.
func expandField(out, f field, dir string, read Read, depth int) (field, error) {
	for _, t := range f {
		path, listed := strings.CutPrefix(t.text, "@")
		if t.quoted || !listed || path == "" {
			out = append(out, t)
			continue
		}
		if depth == maxDepth {
			return nil, fmt.Errorf("%q: more than %d files name each other", clip(t.text), maxDepth)
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		text, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", clip(t.text), err)
		}
		err = eachLine(path, string(text), func(l line) (err error) {
			for _, inLine := range l.fields {
				if out, err = expandField(out, inLine, filepath.Dir(path), read, depth+1); err != nil {
					return err
				}
			}
			if len(out) > maxNames {
				return errors.New("there are too many names")
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
