package repotest_test

import (
	"go/ast"
	"go/doc"
	"strconv"
	"strings"
	"testing"
)

func TestPackagesHaveADoc(t *testing.T) {
	for dir, files := range packages(t) {
		documented, code := false, false
		for _, f := range files {
			if f.isTest() {
				continue
			}
			code = true
			documented = documented || f.ast.Doc != nil
		}
		if code && !documented {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

func TestPackagesHaveARunnableExample(t *testing.T) {
	for dir, files := range packages(t) {
		if !public(dir) {
			continue
		}
		var tests []*ast.File
		main, code := false, false
		for _, f := range files {
			if f.isTest() {
				tests = append(tests, f.ast)
			} else {
				code = true
				main = main || f.ast.Name.Name == "main"
			}
		}
		if !code || main {
			continue
		}
		runnable := false
		for _, e := range doc.Examples(tests...) {
			runnable = runnable || e.Output != "" || e.EmptyOutput
		}
		if !runnable {
			t.Errorf("%s has no Example with an // Output: comment", dir)
		}
	}
}

// public reports whether users import packages of the directory.
func public(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	switch top {
	case "internal", "bench", "integration", "cmd", "examples":
		return false
	}
	return !strings.Contains(dir, "/internal")
}

func TestPublicSignaturesShowNoInternalType(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest() || !public(f.dir()) {
			continue
		}
		internal := internalImports(f)
		if len(internal) == 0 {
			continue
		}
		for _, d := range f.ast.Decls {
			for _, node := range signatures(d) {
				ast.Inspect(node, func(n ast.Node) bool {
					sel, ok := n.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					if id, ok := sel.X.(*ast.Ident); ok && internal[id.Name] {
						t.Errorf("%s: a public signature shows %s.%s, which users cannot name", f.line(sel.Pos()), id.Name, sel.Sel.Name)
					}
					return true
				})
			}
		}
	}
}

// internalImports returns the names under which a file knows internal packages.
func internalImports(f goFile) map[string]bool {
	names := map[string]bool{}
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.Contains(p+"/", "/internal/") {
			continue
		}
		name := p[strings.LastIndexByte(p, '/')+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = true
	}
	return names
}

// signatures returns the parts of a declaration that users see.
func signatures(d ast.Decl) []ast.Node {
	var nodes []ast.Node
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && exportedReceiver(d) {
			nodes = append(nodes, d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					nodes = append(nodes, typeParts(s)...)
				}
			case *ast.ValueSpec:
				if s.Type != nil && s.Names[0].IsExported() {
					nodes = append(nodes, s.Type)
				}
			}
		}
	}
	return nodes
}

// typeParts returns the visible parts of a type: of a struct its exported and embedded fields.
func typeParts(s *ast.TypeSpec) []ast.Node {
	st, ok := s.Type.(*ast.StructType)
	if !ok {
		return []ast.Node{s.Type}
	}
	var nodes []ast.Node
	for _, field := range st.Fields.List {
		if len(field.Names) == 0 || field.Names[0].IsExported() {
			nodes = append(nodes, field.Type)
		}
	}
	return nodes
}

// exportedReceiver reports whether a function is no method, or one of an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	exported := false
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			exported = id.IsExported()
			return false
		}
		return true
	})
	return exported
}
