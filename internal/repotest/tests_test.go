package repotest_test

import (
	"go/ast"
	"testing"
)

// allowed are the calls that break the rule on tests, by "file function", with the reason.
var allowed = map[string]string{
	"mux/dripper_test.go Write":               "a slow connection of tests that run under testing/synctest",
	"upstream/dns/dns_test.go TestTimeToLive": "a name server that is far away: the test is about the time of an answer",
}

// TestTestsDoNotSleepOrSkip: tests must not sleep, which makes them slow or flaky, and must not
// pass without having run. Under testing/synctest time is simulated, so Sleep is permitted there.
func TestTestsDoNotSleepOrSkip(t *testing.T) {
	used := map[string]bool{}
	for _, f := range goFiles(t) {
		if !f.isTest() && !below(f.dir(), "integration") && !below(f.dir(), "internal/pgtest") {
			continue
		}
		fake := imports(f, "testing/synctest")
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			key := f.path + " " + fn.Name.Name
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				what := lazy(n, fake)
				switch {
				case what == "":
				case allowed[key] != "":
					used[key] = true
				default:
					t.Errorf("%s: %s calls %s", f.line(n.Pos()), fn.Name.Name, what)
				}
				return true
			})
		}
	}
	for key := range allowed {
		if !used[key] {
			t.Errorf("%q is on the allow-list and needs it no longer", key)
		}
	}
}

// lazy returns the call when it sleeps or skips.
func lazy(n ast.Node, fakeTime bool) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	switch {
	case id.Name == "time" && sel.Sel.Name == "Sleep" && !fakeTime:
		return "time.Sleep"
	case sel.Sel.Name == "Skip" || sel.Sel.Name == "Skipf" || sel.Sel.Name == "SkipNow":
		switch id.Name {
		case "t", "b", "tb", "f":
			return id.Name + "." + sel.Sel.Name
		}
	}
	return ""
}

func imports(f goFile, p string) bool {
	for _, spec := range f.ast.Imports {
		if spec.Path.Value == `"`+p+`"` {
			return true
		}
	}
	return false
}
