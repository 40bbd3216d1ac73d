// Package escape has the analyzer of routevet: it reports a *route.Ctx, or the files of a form, that may be used
// after the handler has returned, when every method panics.
//
// Reported are
//
//   - a go statement, time.AfterFunc, context.AfterFunc, or a method Go as that of sync.WaitGroup, with a function that uses one or is given
//     a struct that holds one, unless the handler waits afterwards: by a method called Wait, by receiving from a
//     channel or by select;
//   - one that is stored where it outlives the function: in a package variable, behind a field of something the
//     function was given, in a map or slice that it was given, or sent to a channel; alone, in a composite literal,
//     appended, or captured by a function.
//
// A function that a response holds, as Write of a route.Stream, may use its Ctx and is not reported. Files are
// looked for in functions that have a Ctx.
package escape

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// Analyzer reports contexts of package route that outlive their handlers.
var Analyzer = &analysis.Analyzer{
	Name:     "routeescape",
	Doc:      "report a *route.Ctx that may be used after its handler has returned",
	URL:      "https://pkg.go.dev/github.com/headpond/headpond/cmd/routevet/escape",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      run,
}

const routePath = "github.com/headpond/headpond/route"

func run(pass *analysis.Pass) (any, error) {
	if pass.Pkg.Path() == routePath {
		return nil, nil // package route makes them
	}
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	nodes := []ast.Node{(*ast.GoStmt)(nil), (*ast.CallExpr)(nil), (*ast.AssignStmt)(nil), (*ast.SendStmt)(nil)}
	in.WithStack(nodes, func(n ast.Node, push bool, stack []ast.Node) bool {
		if !push {
			return true
		}
		switch n := n.(type) {
		case *ast.GoStmt:
			reportGo(pass, n, n.Call, stack)
		case *ast.CallExpr:
			if calls(pass, n, "time", "AfterFunc") || calls(pass, n, "context", "AfterFunc") || startsGoroutine(pass, n) {
				reportGo(pass, n, n, stack)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if i < len(n.Rhs) && ends(pass, carries(pass, n.Rhs[i]), stack) && outlives(pass, left, stack) {
					pass.Reportf(n.Pos(), "the %s is stored where it outlives its handler: store what is needed of it", carries(pass, n.Rhs[i]))
				}
			}
		case *ast.SendStmt:
			if name := carries(pass, n.Value); ends(pass, name, stack) {
				pass.Reportf(n.Pos(), "the %s is sent to a channel: its receiver may use it after its handler has returned", name)
			}
		}
		return true
	})
	return nil, nil
}

// scoped returns the name of an expression's type if it is valid only in a handler.
func scoped(pass *analysis.Pass, e ast.Expr) string { return scopedType(pass.TypesInfo.TypeOf(e)) }

func scopedType(t types.Type) string {
	if t == nil {
		return ""
	}
	t = types.Unalias(t)
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	named, ok := t.(*types.Named)
	if !ok || named.Obj().Pkg() == nil || named.Obj().Pkg().Path() != routePath {
		return ""
	}
	switch name := named.Obj().Name(); name {
	case "Ctx", "Files":
		return "route." + name
	}
	return ""
}

// ends reports whether a value named by scoped ends with a handler. Files end only in handlers: clients have files to
// send, too.
func ends(pass *analysis.Pass, name string, stack []ast.Node) bool {
	if name != "route.Files" {
		return name != ""
	}
	for _, n := range stack {
		var params *ast.FieldList
		switch f := n.(type) {
		case *ast.FuncDecl:
			params = f.Type.Params
		case *ast.FuncLit:
			params = f.Type.Params
		default:
			continue
		}
		for _, p := range params.List {
			if scoped(pass, p.Type) == "route.Ctx" {
				return true
			}
		}
	}
	return false
}

// holds returns the field of a struct, or of a struct behind a pointer, that is valid only in a handler.
func holds(t types.Type, depth int) string {
	t = types.Unalias(t)
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok || depth == 0 {
		return ""
	}
	for f := range s.Fields() {
		if name := scopedType(f.Type()); name != "" {
			return name
		}
		if name := holds(f.Type(), depth-1); name != "" {
			return name
		}
	}
	return ""
}

// carries returns the part of an expression that is valid only in a handler.
func carries(pass *analysis.Pass, e ast.Expr) string {
	e = ast.Unparen(e)
	if name := scoped(pass, e); name != "" {
		return name
	}
	var parts []ast.Expr
	switch e := e.(type) {
	case *ast.UnaryExpr:
		if e.Op == token.AND {
			parts = []ast.Expr{e.X}
		}
	case *ast.CompositeLit:
		parts = e.Elts
	case *ast.KeyValueExpr:
		parts = []ast.Expr{e.Value}
	case *ast.CallExpr:
		if id, ok := e.Fun.(*ast.Ident); ok && pass.TypesInfo.Uses[id] == types.Universe.Lookup("append") {
			parts = e.Args[1:]
		}
	case *ast.FuncLit:
		name := ""
		uses(pass, e, func(_ *ast.Ident, found string) { name = found })
		return name
	}
	for _, p := range parts {
		if name := carries(pass, p); name != "" {
			return name
		}
	}
	return ""
}

// uses calls f with each variable from outside n that n uses and that is valid only in a handler.
func uses(pass *analysis.Pass, n ast.Node, f func(id *ast.Ident, name string)) {
	whole := map[*ast.Ident]bool{} // variables used as a whole, not only one of their fields
	ast.Inspect(n, func(at ast.Node) bool {
		if s, ok := at.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok {
				selection := pass.TypesInfo.Selections[s]
				whole[id] = selection != nil && selection.Kind() == types.MethodVal
			}
		}
		id, ok := at.(*ast.Ident)
		if !ok {
			return true
		}
		v, ok := pass.TypesInfo.Uses[id].(*types.Var)
		if !ok || n.Pos() <= v.Pos() && v.Pos() < n.End() && !v.IsField() {
			return true
		}
		name := scopedType(v.Type())
		called, selected := whole[id]
		if name == "" && !v.IsField() && v.Kind() != types.RecvVar && v.Parent() != pass.Pkg.Scope() && (called || !selected) {
			name = holds(v.Type(), 2)
		}
		if name != "" {
			f(id, name)
		}
		return true
	})
}

// reportGo reports a call in another goroutine that has a context as an argument, or whose function has captured one.
func reportGo(pass *analysis.Pass, at ast.Node, call *ast.CallExpr, stack []ast.Node) {
	if waits(pass, at, stack) {
		return
	}
	uses(pass, call, func(id *ast.Ident, name string) {
		if !ends(pass, name, stack) {
			return
		}
		pass.Reportf(id.Pos(), "the %s %s is used by a goroutine that may outlive its handler: call Detach before, or pass what it needs", name, id.Name)
	})
}

// startsGoroutine reports whether a call is of a method Go of a value that also has a method Wait.
func startsGoroutine(pass *analysis.Pass, call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Go" {
		return false
	}
	selection := pass.TypesInfo.Selections[s]
	if selection == nil {
		return false
	}
	wait, _, _ := types.LookupFieldOrMethod(selection.Recv(), true, pass.Pkg, "Wait")
	_, ok = wait.(*types.Func)
	return ok
}

// waits reports whether the enclosing function waits for something after a statement.
func waits(pass *analysis.Pass, at ast.Node, stack []ast.Node) bool {
	body := enclosing(stack[:len(stack)-1])
	if body == nil {
		return false
	}
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if found || n == nil {
			return false
		}
		switch n := n.(type) {
		case *ast.FuncLit, *ast.GoStmt:
			return false // a nested function: it waits elsewhere
		case *ast.UnaryExpr:
			found = n.Op == token.ARROW && n.Pos() > at.Pos()
		case *ast.SelectStmt:
			found = n.Pos() > at.Pos()
		case *ast.RangeStmt:
			_, channel := types.Unalias(pass.TypesInfo.TypeOf(n.X)).Underlying().(*types.Chan)
			found = channel && n.Pos() > at.Pos()
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			found = ok && s.Sel.Name == "Wait" && n.Pos() > at.Pos()
		case *ast.DeferStmt:
			s, ok := n.Call.Fun.(*ast.SelectorExpr)
			found = ok && s.Sel.Name == "Wait"
		}
		return !found
	})
	return found
}

// enclosing returns the body of the innermost function that contains a node.
func enclosing(stack []ast.Node) *ast.BlockStmt {
	for i := len(stack) - 1; i >= 0; i-- {
		switch f := stack[i].(type) {
		case *ast.FuncLit:
			return f.Body
		case *ast.FuncDecl:
			return f.Body
		}
	}
	return nil
}

// outlives reports whether the target of an assignment lives longer than the function: a package variable, or something
// reached from a variable outside.
func outlives(pass *analysis.Pass, left ast.Expr, stack []ast.Node) bool {
	reached := false
	for {
		switch e := ast.Unparen(left).(type) {
		case *ast.SelectorExpr:
			if _, ok := pass.TypesInfo.Uses[e.Sel].(*types.Var); ok && pass.TypesInfo.Selections[e] == nil {
				return true // a variable of another package
			}
			left, reached = e.X, true
		case *ast.IndexExpr:
			left, reached = e.X, true
		case *ast.StarExpr:
			left, reached = e.X, true
		case *ast.Ident:
			v, ok := pass.TypesInfo.ObjectOf(e).(*types.Var)
			if !ok || e.Name == "_" {
				return false
			}
			if v.Parent() == pass.Pkg.Scope() {
				return true
			}
			body := enclosing(stack)
			local := body != nil && body.Pos() <= v.Pos() && v.Pos() < body.End()
			return !local && (reached || captured(v, stack))
		default:
			return false
		}
	}
}

// captured reports whether v belongs to a function around the innermost one.
func captured(v *types.Var, stack []ast.Node) bool {
	for i := len(stack) - 1; i >= 0; i-- {
		if f, ok := stack[i].(*ast.FuncLit); ok {
			return v.Pos() < f.Pos() || v.Pos() >= f.End()
		}
		if _, ok := stack[i].(*ast.FuncDecl); ok {
			return false
		}
	}
	return false
}

// calls reports whether a call is one of a function of a package.
func calls(pass *analysis.Pass, call *ast.CallExpr, path, name string) bool {
	f := typeutil.StaticCallee(pass.TypesInfo, call)
	return f != nil && f.Pkg() != nil && f.Pkg().Path() == path && f.Name() == name
}
