package repotest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"testing"
)

// connTypes are kinds of connections. A type assertion to one of them tests the abilities of a connection.
var connTypes = map[string]bool{
	"fiber.Stream": true, "*fiber.Conn": true, "*fiber.TLSConn": true, "*listener.Conn": true,
	"net.Conn": true, "*net.TCPConn": true, "*net.UnixConn": true, "*tls.Conn": true, "syscall.Conn": true,
}

// allowedAsserts are the permitted type assertions about connections, by "file function type", with the reason.
var allowedAsserts = map[string]string{
	"pgproxy/usage.go accepted *listener.Conn":                          "the bytes are counted by the accepted connection, which TLS may wrap",
	"internal/link/link.go New *net.UnixConn":                           "only Unix sockets carry descriptors",
	"mux/handshake.go run *tls.Conn":                                    "the peer's certificate is part of its identity",
	"mux/resume_handshake.go present *tls.Conn":                         "its handshake has to heed a context",
	"mux/link.go closeNow *tls.Conn":                                    "close_notify of crypto/tls may wait, and a Stream says nothing of connections that are not its own",
	"mux/write_linux.go plainSocket *net.TCPConn":                       "writes past package net, which only a socket with nothing in between allows",
	"mux/write_linux.go plainSocket *net.UnixConn":                      "the same",
	"pool/httppool/conn.go isSocket *net.TCPConn":                       "deadlines that are moved late are for sockets only",
	"pool/httppool/conn.go isSocket *net.UnixConn":                      "the same",
	"pool/httppool/upgrade.go closeWrite interface{CloseWrite() error}": "the client's side of an upgrade may be a hijacked connection of net/http",
	"pgwire/reader.go NewReader waiter":                                 "a codec that imports only the standard library reads any io.Reader; WaitReadable may be unsupported",
	"pgwire/reader.go SetSource waiter":                                 "the same",
}

// TestNobodyAsksWhatAConnectionCan: a fiber.Stream has all methods that sessions need, and reports unsupported ones.
// Outside of package fiber no type assertion asks for a kind of connection, or for one of Stream's methods.
func TestNobodyAsksWhatAConnectionCan(t *testing.T) {
	used := map[string]bool{}
	all := packages(t)
	methods := streamMethods(t, all["fiber"])
	for dir, files := range all {
		if !sessions(dir) {
			continue
		}
		interfaces := interfacesOf(files)
		for _, f := range files {
			if f.isTest() {
				continue
			}
			for _, a := range connAsserts(f.ast, interfaces, methods) {
				key := f.path + " " + a.function + " " + a.asked
				if used[key] = true; allowedAsserts[key] == "" {
					t.Errorf("%s: %s asks whether a connection is a %s: use fiber.StreamOf, whose methods report what they do not support", f.line(a.at), a.function, a.asked)
				}
			}
		}
	}
	for key := range allowedAsserts {
		if !used[key] {
			t.Errorf("%q is on the allow-list and needs it no longer", key)
		}
	}
}

// sessions reports whether the rule applies to a directory: code that runs in the gateway.
func sessions(dir string) bool {
	for _, other := range []string{"fiber", "bench", "integration", "examples", "route", "internal/conntest", "internal/repotest"} {
		if below(dir, other) {
			return false
		}
	}
	return true
}

// streamMethods are the names of fiber.Stream's own methods.
func streamMethods(t *testing.T, files []goFile) map[string]bool {
	stream := interfacesOf(files)["Stream"]
	if stream == nil {
		t.Fatal("there is no fiber.Stream")
	}
	names := methodNames(stream)
	if len(names) < 15 || !names["CloseWrite"] || !names["Detach"] {
		t.Fatalf("the methods of fiber.Stream are %v", names)
	}
	return names
}

func methodNames(of *ast.InterfaceType) map[string]bool {
	names := map[string]bool{}
	for _, m := range of.Methods.List {
		for _, n := range m.Names {
			names[n.Name] = true
		}
	}
	return names
}

// interfacesOf returns the interface types of a package, by name.
func interfacesOf(files []goFile) map[string]*ast.InterfaceType {
	found := map[string]*ast.InterfaceType{}
	for _, f := range files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if i, ok := spec.Type.(*ast.InterfaceType); ok {
					found[spec.Name.Name] = i
				}
			}
			return true
		})
	}
	return found
}

// connAssert is a type assertion, or a case of a type switch, about a connection.
type connAssert struct {
	function, asked string
	at              token.Pos
}

func connAsserts(file *ast.File, interfaces map[string]*ast.InterfaceType, methods map[string]bool) (all []connAssert) {
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		look := func(e ast.Expr) {
			if e != nil && asksAbility(e, interfaces, methods) {
				all = append(all, connAssert{fn.Name.Name, types.ExprString(e), e.Pos()})
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeAssertExpr:
				look(n.Type)
			case *ast.TypeSwitchStmt:
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						look(e)
					}
				}
			}
			return true
		})
	}
	return all
}

func asksAbility(e ast.Expr, interfaces map[string]*ast.InterfaceType, methods map[string]bool) bool {
	asked, ok := e.(*ast.InterfaceType)
	if id, isName := e.(*ast.Ident); isName {
		asked, ok = interfaces[id.Name], interfaces[id.Name] != nil
	}
	if !ok {
		return connTypes[types.ExprString(e)]
	}
	for name := range methodNames(asked) {
		if methods[name] {
			return true
		}
	}
	return false
}

func TestAbilityRuleItself(t *testing.T) {
	const source = `package p
type waiter interface{ WaitReadable() error }
type other interface{ Name() string }
func f(c any) {
	_ = c.(waiter)
	_ = c.(interface{ CloseWrite() error })
	_, _ = c.(*net.TCPConn)
	switch c.(type) {
	case *fiber.TLSConn, other:
	}
	_, _ = c.(other), c.(error)
	_ = c.(*net.TCPAddr)
}`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	found := connAsserts(file, interfacesOf([]goFile{{ast: file}}), map[string]bool{"WaitReadable": true, "CloseWrite": true})
	want := []string{"waiter", "interface{CloseWrite() error}", "*net.TCPConn", "*fiber.TLSConn"}
	if len(found) != len(want) {
		t.Fatalf("found %v, want %v", found, want)
	}
	for i, a := range found {
		if a.asked != want[i] || a.function != "f" {
			t.Errorf("found %v, want %v", a, want[i])
		}
	}
}
