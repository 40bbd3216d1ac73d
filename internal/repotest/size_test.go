package repotest_test

import (
	"bytes"
	"go/ast"
	"testing"
)

const (
	// maxFuncLines bounds a function's body, as golangci's funlen counts it: a function that fits a
	// screen is read as one thought.
	maxFuncLines = 70
	// maxFileLines bounds a file: beyond it, it holds more than one idea.
	maxFileLines = 800
)

func TestFunctionsAreShort(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line - 1
			if lines > maxFuncLines {
				t.Errorf("%s: %s has %d lines, the limit is %d", f.line(fn.Pos()), fn.Name.Name, lines, maxFuncLines)
			}
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, f := range goFiles(t) {
		if lines := bytes.Count(f.src, []byte("\n")); lines > maxFileLines {
			t.Errorf("%s has %d lines, the limit is %d", f.path, lines, maxFileLines)
		}
	}
}
