package repotest_test

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"regexp"
	"strings"
	"testing"
)

// exported are the names of a public package, and the fields of its structs.
type exported struct {
	names  map[string]bool
	fields map[string]map[string]bool
}

// TestGoInTheDocumentationNamesWhatThereIs takes the Go blocks of the documents, and the programs of the package comments: they are Go, and
// each name of a package of ours that they use exists, as do the fields they set.
func TestGoInTheDocumentationNamesWhatThereIs(t *testing.T) {
	ours := publicAPIs(t)
	blocks := 0
	for name, text := range markdown(t) {
		for _, m := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			blocks++
			if err := ours.check(t, name, m[1]); err != nil {
				t.Errorf("%s: this is no Go: %v\n%s", name, err, m[1])
			}
		}
	}
	if blocks == 0 {
		t.Error("no Go in the documents")
	}
	for dir, files := range packages(t) {
		for _, f := range files {
			if !public(dir) || f.isTest() || f.ast.Doc == nil {
				continue
			}
			for _, block := range new(comment.Parser).Parse(f.ast.Doc.Text()).Content {
				code, ok := block.(*comment.Code)
				if !ok {
					continue
				}
				if err := ours.check(t, f.path, code.Text); err != nil && strings.HasPrefix(code.Text, "package ") { // else it may be YAML
					t.Errorf("%s: this is no Go: %v\n%s", f.path, err, code.Text)
				}
			}
		}
	}
}

// publicAPIs returns the exported names, by the package's name.
func publicAPIs(t *testing.T) apis {
	all := apis{}
	for dir, files := range packages(t) {
		if !public(dir) {
			continue
		}
		api := exported{map[string]bool{}, map[string]map[string]bool{}}
		for _, f := range files {
			if f.isTest() {
				continue
			}
			all[f.ast.Name.Name] = api
			for _, d := range f.ast.Decls {
				api.add(d)
			}
		}
	}
	return all
}

func (e exported) add(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			e.names[d.Name.Name] = true
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					e.names[n.Name] = true
				}
			case *ast.TypeSpec:
				e.names[s.Name.Name] = true
				if st, ok := s.Type.(*ast.StructType); ok {
					e.fields[s.Name.Name] = fieldNames(st)
				}
			}
		}
	}
}

func fieldNames(st *ast.StructType) map[string]bool {
	names := map[string]bool{}
	for _, field := range st.Fields.List {
		for _, n := range field.Names {
			names[n.Name] = true
		}
		if len(field.Names) > 0 {
			continue
		}
		ast.Inspect(field.Type, func(n ast.Node) bool { // embedded: the last name of its type
			if id, ok := n.(*ast.Ident); ok {
				names[id.Name] = true
			}
			return true
		})
	}
	return names
}

// apis are the public packages, by name.
type apis map[string]exported

// selected returns the package and the name of a selector, if the package is one of ours.
func (a apis) selected(e ast.Expr) (api exported, name string, ok bool) {
	if x, generic := e.(*ast.IndexExpr); generic {
		e = x.X
	}
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return exported{}, "", false
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok {
		return exported{}, "", false
	}
	api, ok = a[id.Name]
	return api, sel.Sel.Name, ok
}

// checkFields looks at the fields a literal of one of our structs sets.
func (a apis) checkFields(t *testing.T, where string, lit *ast.CompositeLit) {
	api, name, ok := a.selected(lit.Type)
	fields, isStruct := api.fields[name]
	if !ok || !isStruct {
		return
	}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && !fields[key.Name] {
				t.Errorf("%s: %s has no field %s", where, name, key.Name)
			}
		}
	}
}

// check takes a program, declarations, or statements of a function. The error says that it is no Go.
func (a apis) check(t *testing.T, where, code string) error {
	var file *ast.File
	var err error
	for _, frame := range [][2]string{{"", ""}, {"package p\n", ""}, {"package p\nfunc _() {\n", "\n}"}} {
		if file, err = parser.ParseFile(token.NewFileSet(), where, frame[0]+code+frame[1], parser.SkipObjectResolution); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	a = maps.Clone(a)
	for _, spec := range file.Imports { // a foreign package of the same name
		if p := strings.Trim(spec.Path.Value, `"`); !strings.HasPrefix(p, module) {
			delete(a, path.Base(p))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if api, name, ok := a.selected(n); ok && ast.IsExported(name) && !api.names[name] {
				t.Errorf("%s: there is no %s.%s", where, n.X, name)
			}
		case *ast.CompositeLit:
			a.checkFields(t, where, n)
		}
		return true
	})
	return nil
}
