package admin_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/admin"
)

// TestProfileRefused: an unknown kind, a second profile of processor time, and requests that a web page could send.
func TestProfileRefused(t *testing.T) {
	h, err := admin.New(admin.Config{Snapshot: func() admin.Snapshot { return admin.Snapshot{} }, Profile: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Fatal(err)
	}
	defer pprof.StopCPUProfile()
	for name, c := range map[string]struct {
		kind, header, from string
		code               int
		text               string
	}{
		"unknown":    {"memory", "1", "127.0.0.1:1", http.StatusBadRequest, "kind is one of cpu, heap, goroutine"},
		"under way":  {"cpu", "1", "127.0.0.1:1", http.StatusConflict, "already in use"},
		"no header":  {"heap", "", "127.0.0.1:1", http.StatusForbidden, "the header X-Headpond-Reload is missing"},
		"from afar":  {"heap", "1", "192.0.2.1:1", http.StatusForbidden, "from this machine only"},
		"as it is":   {"heap", "1", "127.0.0.1:1", http.StatusOK, ""},
		"goroutines": {"goroutine", "1", "127.0.0.1:1", http.StatusOK, ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/profile?kind="+c.kind, nil)
		r.RemoteAddr = c.from
		if c.header != "" {
			r.Header.Set(admin.ReloadHeader, c.header)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s: %d %.100q, want %d with %q", name, w.Code, w.Body, c.code, c.text)
		}
	}

	h, err = admin.New(admin.Config{Snapshot: func() admin.Snapshot { return admin.Snapshot{} }})
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/api/v1/profile?kind=heap", nil)
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set(admin.ReloadHeader, "1")
	if h.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("without Config.Profile: %d", w.Code)
	}
}
