package kube_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/sourcetest"
	"github.com/headpond/headpond/upstream/kube"
)

const (
	stopping = `"conditions":{"ready":false,"serving":true,"terminating":true}`
	unready  = `"conditions":{"ready":false,"serving":false,"terminating":false}`
	over     = `"conditions":{"ready":false,"serving":false,"terminating":true}`
)

// TestFollow takes a Service through its life, on one watch.
func TestFollow(t *testing.T) {
	a := newAPI(t)
	a.put("kubernetes", ofPort(6443, at("10.0.0.2", ""), at("10.0.0.1", `"zone":"a","nodeName":"n1"`)))
	a.putOf("default", "other", "other-x", ofPort(80, at("10.9.9.9", "")))
	a.putOf("prod", "kubernetes", "kubernetes", ofPort(80, at("10.9.9.8", "")))
	w := watch(t, a.config(t))
	r := w.Wants("10.0.0.1:6443/a 10.0.0.2:6443")
	if r.Set[0].Metadata["node"] != "n1" {
		t.Errorf("metadata: %v", r.Set[0].Metadata)
	}
	a.put("kubernetes-ipv6", ofPort(6444, at("fd00::1", ""), at("fd00::2", unready)))
	w.Wants("10.0.0.1:6443/a 10.0.0.2:6443 [fd00::1]:6444")
	a.putOf("default", "other", "other-x", ofPort(80, at("10.9.9.7", ""))) // of no interest
	a.put("kubernetes", ofPort(6443, at("10.0.0.2", stopping), at("10.0.0.1", ""), at("10.0.0.3", over)))
	w.Wants("10.0.0.1:6443 10.0.0.2:6443@2 [fd00::1]:6444")
	a.remove("kubernetes-ipv6")
	w.Wants("10.0.0.1:6443 10.0.0.2:6443@2")
	a.put("kubernetes", ofPort(6443, at("10.0.0.2", unready), at("10.0.0.1", over)))
	if r := w.Wants("!"); !strings.Contains(r.Err.Error(), "service default/kubernetes: no endpoint is ready, 2 are not") {
		t.Errorf("nothing ready: %v", r.Err)
	}
	a.remove("kubernetes")
	if r := w.Wants("!"); !strings.Contains(r.Err.Error(), "is there such a Service?") {
		t.Errorf("no slices: %v", r.Err)
	}
	a.put("kubernetes", ofPort(6443, at("10.0.0.1", "")))
	w.Wants("10.0.0.1:6443")
	asked := a.took()
	if len(asked) != 2 || asked[0] != "HTTP/2.0 list 0" || asked[1] != "HTTP/2.0 watch 103" {
		t.Errorf("asked for %q, want one list and one watch", asked)
	}
}

// TestDoubles: an endpoint that is in two slices is one, ready if it is so in either.
func TestDoubles(t *testing.T) {
	a := newAPI(t)
	a.put("a", ofPort(6443, at("10.0.0.1", stopping), at("10.0.0.2", unready)))
	a.put("b", ofPort(6443, at("10.0.0.1", ""), at("10.0.0.2", "")))
	watch(t, a.config(t)).Wants("10.0.0.1:6443 10.0.0.2:6443")
}

func TestPorts(t *testing.T) {
	a := newAPI(t)
	const three = `{"ports":[{"name":"web","port":80},{"name":"admin","port":8080,"protocol":"TCP"},{"name":"dns","port":53,"protocol":"UDP"}],
		"endpoints":[{"addresses":["10.0.0.1"]}]}`
	a.putOf("prod", "web", "web-1", three)
	cfg := a.config(t)
	cfg.Service = "prod/web"
	for port, want := range map[string]string{"web": "10.0.0.1:80", "8080": "10.0.0.1:8080", "": "!", "dns": "!", "https": "!"} {
		cfg.Port = port
		r := watch(t, cfg).Wants(want)
		if want == "!" && !strings.Contains(r.Err.Error(), "web 80, admin 8080") {
			t.Errorf("port %q: %v", port, r.Err)
		}
	}
	a.putOf("prod", "web", "web-1", `{"ports":[],"endpoints":[]}`)
	a.putOf("prod", "web", "web-2", `{"ports":[{"name":"web","port":81}],"endpoints":[{"addresses":["10.0.0.1"]}]}`)
	cfg.Port = "web"
	watch(t, cfg).Wants("10.0.0.1:81") // a slice without endpoints needs no ports
	a.putOf("prod", "web", "web-3", `{"ports":[],"endpoints":[{"addresses":["10.0.0.2"]}]}`)
	a.putOf("prod", "web", "web-4", `{"ports":[{"name":"old","port":82}],"endpoints":[{"addresses":["10.0.0.3"]}]}`)
	watch(t, cfg).Wants("10.0.0.1:81") // pods without the port are left out, and they alone
}

func TestZones(t *testing.T) {
	a := newAPI(t)
	in := func(zone, hint, conditions string) string {
		text := `"zone":"` + zone + `"`
		if hint != "" {
			text += `,"hints":{"forZones":[{"name":"` + hint + `"}]}`
		}
		if conditions != "" {
			text += "," + conditions
		}
		return text
	}
	cfg := a.config(t)
	cfg.PreferZone = "b"
	a.put("k", ofPort(1, at("10.0.0.1", in("a", "", "")), at("10.0.0.2", in("b", "", "")), at("10.0.0.3", in("b", "", stopping)), at("10.0.0.4", in("a", "", stopping))))
	w := watch(t, cfg)
	w.Wants("10.0.0.1:1@1/a 10.0.0.2:1/b 10.0.0.3:1@2/b 10.0.0.4:1@3/a")
	a.put("k", ofPort(1, at("10.0.0.1", in("a", "b", "")), at("10.0.0.2", in("b", "a", ""))))
	w.Wants("10.0.0.1:1/a 10.0.0.2:1@1/b")
	a.put("k", ofPort(1, at("10.0.0.1", in("a", "b", "")), at("10.0.0.2", in("b", "", "")))) // a hint too few
	w.Wants("10.0.0.1:1@1/a 10.0.0.2:1/b")
}

// TestEndedWatch continues a watch where it ended, without a list and without a reported error.
func TestEndedWatch(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	w := watch(t, a.config(t))
	w.Wants("10.0.0.1:6443")
	for address, end := range map[string]func(){"10.0.0.2": a.endWatches, "10.0.0.3": a.CloseClientConnections} {
		end()
		a.put("k", ofPort(6443, at(address, "")))
		w.Wants(address + ":6443")
	}
	lists := 0
	for _, asked := range a.took() {
		if strings.Contains(asked, "list") {
			lists++
		}
	}
	if lists != 1 {
		t.Errorf("%d lists, want one", lists)
	}
}

// TestRelistAfterGone: the source lists again when the API server has forgotten the version.
func TestRelistAfterGone(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	a.put("gone", ofPort(6443, at("10.0.0.9", "")))
	w := watch(t, a.config(t))
	w.Wants("10.0.0.1:6443 10.0.0.9:6443")
	a.mu.Lock()
	delete(a.slices, "default/gone") // without a watch: only a list shows it
	a.mu.Unlock()
	a.forget()
	w.Wants("10.0.0.1:6443")
	a.put("k", ofPort(6443, at("10.0.0.2", "")))
	w.Wants("10.0.0.2:6443")
	asked := strings.Join(a.took(), ",")
	if !strings.HasSuffix(asked, "watch 102,HTTP/2.0 list ,HTTP/2.0 watch 112") {
		t.Errorf("asked for %s; want a list of the present state, not of the server's cache", asked)
	}
	// A restored backup knows no such version yet.
	a.do(func() {
		a.version, a.oldest, a.history = 50, 50, nil
		a.ends++
		a.broken = func(w http.ResponseWriter, r *http.Request) bool {
			future := r.URL.Query().Get("resourceVersion") == "113"
			if future {
				fail(w, http.StatusGatewayTimeout, "Timeout: Too large resource version: 113, current: 50")
			}
			return future
		}
	})
	a.put("k", ofPort(6443, at("10.0.0.3", "")))
	w.Until("10.0.0.3:6443")
}

// TestErrors: errors are reported from the second one in a row, until the API answers.
func TestErrors(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	for _, c := range []struct {
		want   string
		answer func(w http.ResponseWriter)
	}{
		{`403: endpointslices is forbidden: User "x" cannot watch`, func(w http.ResponseWriter) { fail(w, 403, `endpointslices is forbidden: User "x" cannot watch`) }},
		{"502 Bad Gateway", func(w http.ResponseWriter) { w.WriteHeader(502) }},
		{"302 Found", func(w http.ResponseWriter) { w.Header().Set("Location", "https://elsewhere/"); w.WriteHeader(302) }},
		{"ends the watch at once", func(http.ResponseWriter) {}},
		{"invalid character", func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) }},
		{"too large", func(w http.ResponseWriter) { _, _ = w.Write([]byte(`"` + strings.Repeat("x", 9<<20))) }},
		{"unexpected EOF", func(w http.ResponseWriter) { // after longer than a watch lasts that counts as none
			_ = http.NewResponseController(w).Flush()
			<-time.After(1100 * time.Millisecond)
			_, _ = w.Write([]byte(`{"type":`))
		}},
		{"no such thing", func(w http.ResponseWriter) {
			_, _ = w.Write([]byte(`{"type":"ERROR","object":{"kind":"Status","code":500,"message":"no such thing"}}`))
		}},
	} {
		w := watch(t, a.config(t))
		w.Wants("10.0.0.1:6443")
		a.do(func() {
			a.broken = func(w http.ResponseWriter, _ *http.Request) bool { c.answer(w); return true }
			a.ends++
		})
		if r := w.Wants("!"); !strings.Contains(r.Err.Error(), c.want) {
			t.Errorf("%v, want %s", r.Err, c.want)
		}
		a.do(func() { a.broken = nil })
		w.Until("10.0.0.1:6443")
		w.End()
	}
}

// TestToken reads the token again: kubelets replace it, and API servers refuse the old one.
func TestToken(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	cfg := a.config(t)
	w := watch(t, cfg)
	w.Wants("10.0.0.1:6443")
	a.do(func() { a.token = "secret-2"; a.ends++ })
	if r := w.Wants("!"); !strings.Contains(r.Err.Error(), "401: Unauthorized") || strings.Contains(r.Err.Error(), "secret") {
		t.Errorf("with the old token: %v", r.Err)
	}
	write(t, cfg.TokenFile, "secret\n2")
	for r := w.Wants("!"); !strings.Contains(r.Err.Error(), "not one word"); r = w.Wants("!") {
		if strings.Contains(r.Err.Error(), "secret") {
			t.Fatalf("the error has the token: %v", r.Err)
		}
	}
	write(t, cfg.TokenFile, "secret-2")
	w.Until("10.0.0.1:6443")
}

// TestStart uses the kept set until the API answers, and nothing else.
func TestStart(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", `"zone":"a"`), at("10.0.0.2", stopping)))
	cfg := a.config(t)
	cfg.Cache = filepath.Join(t.TempDir(), "kept.json")
	cfg.Bootstrap = []string{"10.0.0.7:6443", "10.0.0.6:6443"}
	up := cfg
	first := watch(t, cfg)
	first.Wants("10.0.0.6:6443 10.0.0.7:6443")
	first.Wants("10.0.0.1:6443/a 10.0.0.2:6443@2")
	first.End()
	info, err := os.Stat(cfg.Cache)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v, want a file of mode 0600", info, err)
	}
	if left, err := os.ReadDir(filepath.Dir(cfg.Cache)); err != nil || len(left) != 1 {
		t.Errorf("%v %v, want the file alone", left, err)
	}
	cfg.Server = "127.0.0.1:1" // no server is there
	second := watch(t, cfg)
	if r := second.Wants("10.0.0.1:6443/a 10.0.0.2:6443@2 10.0.0.6:6443@4 10.0.0.7:6443@4"); r.Set[0].Metadata["kept"] == "" {
		t.Errorf("metadata: %v", r.Set[0].Metadata)
	}
	second.Wants("!")
	second.End()
	up.Server = a.URL
	third := watch(t, up)
	third.Wants("10.0.0.1:6443/a 10.0.0.2:6443@2 10.0.0.6:6443@4 10.0.0.7:6443@4")
	if r := third.Wants("10.0.0.1:6443/a 10.0.0.2:6443@2"); r.Set[0].Metadata["kept"] != "" {
		t.Errorf("a set of the API looks like a kept one: %v", r.Set[0].Metadata)
	}
	third.End()

	// A file that must not be trusted is reported, and the source works without it.
	for _, c := range []struct {
		bad  func()
		want string
	}{
		{func() { cfg.Service = "prod/web" }, `they are of service "default/kubernetes"`},
		{func() { cfg.Service = ""; _ = os.Chmod(cfg.Cache, 0o620) }, "other users can write to it"},
		{func() { _ = os.Chmod(cfg.Cache, 0o600); write(t, cfg.Cache, `{"service":`) }, "unexpected end of JSON"},
		{func() { write(t, cfg.Cache, keptAs(`{"address":"10.0.0.1:6443"},{"address":"10.0.0.1"}`)) }, `"10.0.0.1": want host:port`},
		{func() { write(t, cfg.Cache, keptAs(`{"address":"unix:/run/x"}`)) }, `"unix:/run/x": want host:port`},
		{func() { write(t, cfg.Cache, keptAs(`{"address":"10.0.0.1:6443","priority":-1}`)) }, "priority -1 is not possible"},
		{func() {
			write(t, cfg.Cache, keptAs(strings.Repeat(`{"address":"10.0.0.1:6443"},`, 998)+`{"address":"10.0.0.1:6443"}`))
		}, "999 endpoints; at most 998"},
	} {
		c.bad()
		w := watch(t, cfg)
		if r := w.Wants("!"); !strings.Contains(r.Err.Error(), c.want) {
			t.Errorf("%v, want %s", r.Err, c.want)
		}
		w.Wants("10.0.0.6:6443 10.0.0.7:6443")
		w.End()
	}
}

// keptAs is a file of kept endpoints.
func keptAs(endpoints string) string {
	return `{"service":"default/kubernetes","saved":"2026-01-02T03:04:05Z","endpoints":[` + endpoints + `]}`
}

// TestDualStack: a pod that has addresses of both families is one endpoint, of IPv4; endpoints that are no pods, or
// have one family, are unchanged.
func TestDualStack(t *testing.T) {
	a := newAPI(t)
	pod := func(name string) string { return `"targetRef":{"kind":"Pod","name":"` + name + `"}` }
	a.put("k-4", ofPort(80, at("10.0.0.1", pod("one")), at("10.0.0.2", pod("two")+","+unready), at("10.0.0.3", `"zone":"a"`)))
	a.put("k-6", strings.Replace(ofPort(80, at("fd00::1", pod("one")), at("fd00::2", pod("two")), at("fd00::3", `"zone":"a"`), at("fd00::4", pod("four"))), "IPv4", "IPv6", 1))
	watch(t, a.config(t)).Wants("10.0.0.1:80 10.0.0.3:80/a [fd00::2]:80 [fd00::3]:80/a [fd00::4]:80")
}

// TestShortWatches: there is a pause between watches that end at once, also if each has brought a change.
func TestShortWatches(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	var asked []time.Time // guarded by a.mu
	enough := make(chan struct{})
	a.do(func() {
		a.broken = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "true" {
				return false
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if asked = append(asked, time.Now()); len(asked) == 5 {
				close(enough)
			}
			_, _ = w.Write([]byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"101"}}}` + "\n"))
			return true
		}
	})
	w := watch(t, a.config(t))
	w.Wants("10.0.0.1:6443")
	select {
	case <-enough:
	case r := <-w.Reports:
		t.Errorf("%v was reported", r)
	case <-time.After(sourcetest.Patience):
		t.Fatal("no watches")
	}
	w.End()
	a.mu.Lock()
	defer a.mu.Unlock()
	const pauses, least = 4, 100 * time.Millisecond // half of the first pause
	if took := asked[pauses].Sub(asked[0]); took < pauses*least {
		t.Errorf("five watches within %v, want a pause of %v at least between them", took, least)
	}
}

// TestCacheFails uses the endpoints nevertheless, reports the failure, and keeps them once it can.
func TestCacheFails(t *testing.T) {
	a := newAPI(t)
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	cfg := a.config(t)
	dir := filepath.Join(t.TempDir(), "missing")
	cfg.Cache = filepath.Join(dir, "kept.json")
	w := watch(t, cfg)
	if r := w.Wants("10.0.0.1:6443 !"); !strings.Contains(r.Err.Error(), "the endpoints cannot be kept") {
		t.Error(r.Err)
	}
	w.Wants("10.0.0.1:6443 !") // the watch has begun, and it is tried again
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a.put("k", ofPort(6443, at("10.0.0.1", "")))
	w.Wants("10.0.0.1:6443")
	if _, err := os.Stat(cfg.Cache); err != nil {
		t.Error(err)
	}
}

// TestReplacedAuthority connects anew when the files have changed.
func TestReplacedAuthority(t *testing.T) {
	a, b := newAPI(t), newAPI(t)
	b.put("k", ofPort(6443, at("10.0.0.1", "")))
	cfg := b.config(t)
	good, err := os.ReadFile(cfg.CA)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(a.ca)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cfg.CA, string(other))
	w := watch(t, cfg)
	if r := w.Wants("!"); !strings.Contains(r.Err.Error(), "certificate signed by unknown authority") || strings.Contains(r.Err.Error(), "labelSelector") {
		t.Errorf("with another authority: %v", r.Err)
	}
	write(t, cfg.CA, string(good))
	w.Until("10.0.0.1:6443")
}

func TestBadConfig(t *testing.T) {
	for want, cfg := range map[string]kube.Config{
		`"Prod/web": want namespace/name`:           {Service: "Prod/web"},
		`"a/b/c": want namespace/name`:              {Service: "a/b/c"},
		"port 70000 is not from 1 to 65535":         {Port: "70000"},
		`port "a b": want the name`:                 {Port: "a b"},
		`server "ftp://x": want https://host:port`:  {Server: "ftp://x"},
		"server want https://host:port, without a":  {Server: "https://user:pw@host"},
		"Cert and Key belong together":              {Cert: "x"},
		"Context needs a Kubeconfig":                {Context: "x"},
		`bootstrap "unix:/x": want host:port`:       {Bootstrap: []string{"unix:/x"}},
		`bootstrap "upstream:web": want host:port`:  {Bootstrap: []string{"upstream:web"}},
		`bootstrap "10.0.0.1:99999": want host:por`: {Bootstrap: []string{"10.0.0.1:99999"}},
	} {
		if _, err := kube.New(cfg); !errors.Is(err, kube.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
