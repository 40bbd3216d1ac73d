package admin_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/admin"
)

// TestPolicyAllowsTheOwnScriptOnly recomputes the hashes from the page as served.
func TestPolicyAllowsTheOwnScriptOnly(t *testing.T) {
	w := get(newHandler(t, admin.Config{LocalOnly: true}), "/")
	policy, body := w.Header().Get("Content-Security-Policy"), w.Body.String()
	for directive, tag := range map[string]string{"script-src": "script", "style-src": "style"} {
		found := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(body, -1)
		if len(found) != 1 {
			t.Fatalf("%d <%s> elements", len(found), tag)
		}
		sum := sha256.Sum256([]byte(found[0][1]))
		want := directive + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		if !strings.Contains(policy, want) {
			t.Errorf("policy %q lacks %q", policy, want)
		}
	}
	for _, part := range []string{"default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("policy %q lacks %q", policy, part)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q is unsafe", policy)
	}
}

// TestPageHoldsNoValuesAndNoMarkupSinks: the page is constant, so hostile names reach it through JSON alone, and the script has no way of
// turning a string into markup or code.
func TestPageHoldsNoValuesAndNoMarkupSinks(t *testing.T) {
	body := get(newHandler(t, admin.Config{}), "/").Body.String()
	empty := get(newHandler(t, admin.Config{Snapshot: func() admin.Snapshot { return admin.Snapshot{} }}), "/").Body.String()
	if body != empty {
		t.Error("the page depends on the gateway's state")
	}
	for _, sink := range []string{
		"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser", "createContextualFragment",
		"srcdoc", "javascript:", " onclick", " onload", " onerror", " style=", "{{",
	} {
		if strings.Contains(body, sink) {
			t.Errorf("the page contains %q", sink)
		}
	}
	if external := regexp.MustCompile(`(src|href)="(https?:)?//`).FindString(body); external != "" {
		t.Errorf("the page loads from elsewhere: %s", external)
	}
}

// TestHostileNamesStayInsideJSON: no "<" reaches a browser unescaped, and the type is one that browsers do not render.
func TestHostileNamesStayInsideJSON(t *testing.T) {
	h := newHandler(t, admin.Config{})
	for _, path := range []string{"/api/v1/status", "/api/v1/pools"} {
		w := get(h, path)
		if !json.Valid(w.Body.Bytes()) || strings.ContainsAny(w.Body.String(), "<>") {
			t.Errorf("%s: %s", path, w.Body)
		}
		if w.Header().Get("Content-Type") != "application/json; charset=utf-8" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", path, w.Header())
		}
	}
	for _, path := range []string{"/metrics", "/readyz"} {
		if w := get(h, path); !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
			t.Errorf("%s: type %q", path, w.Header().Get("Content-Type"))
		}
	}
}
