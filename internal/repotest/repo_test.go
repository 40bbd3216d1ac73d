package repotest_test

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// module is the import path of the core module; the other modules are below it.
const module = "github.com/headpond/headpond"

// goFile is one parsed Go file of the repository, of any module.
type goFile struct {
	path string // slash-separated, relative to the repository
	src  []byte
	ast  *ast.File
	fset *token.FileSet
}

func (f goFile) dir() string  { return path.Dir(f.path) }
func (f goFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// line returns "path:line" of a position, as editors and terminals take it.
func (f goFile) line(pos token.Pos) string {
	p := f.fset.Position(pos)
	p.Filename = f.path
	p.Column = 0
	return p.String()
}

// root returns the repository's directory: where go.work is.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for !exists(filepath.Join(dir, "go.work")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.work above the working directory")
		}
		dir = parent
	}
	return dir
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// walk calls fn for every file of the repository that people wrote.
func walk(t testing.TB, fn func(rel string)) {
	t.Helper()
	top := root(t)
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", "bin", "dist", ".cache", "node_modules":
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(top, name)
		fn(filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	parseOnce sync.Once
	parsed    []goFile
)

// goFiles returns every Go file of the repository, parsed once.
func goFiles(t testing.TB) []goFile {
	t.Helper()
	parseOnce.Do(func() {
		top := root(t)
		fset := token.NewFileSet()
		walk(t, func(rel string) {
			if !strings.HasSuffix(rel, ".go") || strings.Contains(rel, "/testdata/") {
				return
			}
			src, err := os.ReadFile(filepath.Join(top, rel))
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(fset, rel, src, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, goFile{path: rel, src: src, ast: file, fset: fset})
		})
	})
	if len(parsed) == 0 {
		t.Fatal("no Go files found")
	}
	return parsed
}

// packages groups the files by directory.
func packages(t testing.TB) map[string][]goFile {
	t.Helper()
	dirs := map[string][]goFile{}
	for _, f := range goFiles(t) {
		dirs[f.dir()] = append(dirs[f.dir()], f)
	}
	return dirs
}

func TestFilesAreFormatted(t *testing.T) {
	for _, f := range goFiles(t) {
		want, err := format.Source(f.src)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(f.src, want) {
			t.Errorf("%s is not formatted: gofmt -w %s", f.path, f.path)
		}
	}
}

func TestModulesReplaceNothing(t *testing.T) {
	top := root(t)
	walk(t, func(rel string) {
		if base := path.Base(rel); base != "go.mod" && base != "go.work" {
			return
		}
		data, err := os.ReadFile(filepath.Join(top, rel))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(data), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "replace") {
				t.Errorf("%s:%d: a replace directive: users of the module do not get it", rel, i+1)
			}
		}
	})
}
