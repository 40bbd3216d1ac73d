package integration

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
)

// observed is what a client and a server see of a request.
type observed struct {
	Status  int
	Name    string // of the server
	Target  string // that it got
	Request http.Header
	Answer  map[string]string
	Page    bool // the body is that of page.html
}

// told are the headers of answers that matter.
var told = []string{"Location", "X-Site", "Server", "Set-Cookie", "Strict-Transport-Security"}

// startNamed starts a server that says who it is and what it got, and has the status and the headers in its answer that it is asked
// for, with its address in place of OWN.
func startNamed(t *testing.T, name string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := http.Header{}
		for key, values := range r.Header {
			if strings.HasPrefix(key, "X-") && !strings.HasPrefix(key, "X-Forwarded-") && key != "X-Request-Id" {
				got[key] = values
			}
		}
		w.Header().Set("Server", "named")
		for header, as := range map[string]string{"X-Answer-Location": "Location", "X-Answer-Cookie": "Set-Cookie", "X-Answer-User": "X-User"} {
			if value := r.Header.Get(header); value != "" {
				addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
				w.Header().Set(as, strings.ReplaceAll(value, "OWN", addr.String()))
			}
		}
		if status, err := strconv.Atoi(r.Header.Get("X-Answer-Status")); err == nil {
			w.WriteHeader(status)
			return
		}
		_ = json.NewEncoder(w).Encode(observed{Name: name, Target: r.RequestURI, Request: got})
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// observe sends a request to an address, and returns what was seen.
func observe(addr string, r *http.Request) (s observed, err error) {
	r = r.Clone(r.Context())
	r.URL.Host = addr
	client := &http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: r.Host}}}
	resp, err := client.Do(r)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	_ = json.Unmarshal(body, &s)
	s.Page = strings.Contains(string(body), pageText)
	s.Status, s.Answer = resp.StatusCode, map[string]string{}
	for _, key := range told {
		if v := resp.Header.Get(key); v != "" {
			s.Answer[key] = v
		}
	}
	return s, err
}

// peer is another proxy, and a gateway with its configuration imported.
type peer struct {
	t       *testing.T
	kind    string
	addrs   map[string]string // of the other proxy, and of the gateway in its place
	yaml    string
	stderr  string
	servers map[string]string
}

// placeholder matches the names in configurations: SERVER(a) is the address of a server, DOWN one without a server, LISTEN(a) one of
// the proxy, and DIR a folder.
var placeholder = regexp.MustCompile(`(SERVER|LISTEN)\(\w+\)|DOWN|DIR`)

// startPeer starts a proxy and a gateway with the same configuration.
func startPeer(t *testing.T, kind, config string, start func(file string)) *peer {
	t.Helper()
	p := &peer{t: t, kind: kind, addrs: map[string]string{}, servers: map[string]string{}}
	dir := sharedDir(t)
	known := map[string]string{"DOWN": address(t), "DIR": dir}
	if strings.Contains(config, "site.pem") {
		cert, key := certs.PEM(certs.New().Issue("site", "www.example", "shop.example"))
		writeText(t, filepath.Join(dir, "site.pem"), string(cert)+string(key))
	}
	config = placeholder.ReplaceAllStringFunc(config, func(name string) string {
		if known[name] == "" {
			if known[name] = address(t); strings.HasPrefix(name, "SERVER") {
				known[name] = startNamed(t, name[7:len(name)-1])
			}
		}
		return known[name]
	})
	writeText(t, filepath.Join(dir, "page.html"), "<h1>"+pageText+"</h1>")
	file := filepath.Join(dir, kind+".conf")
	writeText(t, file, config)
	start(file)
	var out, errs bytes.Buffer
	args := []string{"import", kind, file}
	if strings.Contains(config, "userlist ") {
		args = []string{"import", "-passwords", filepath.Join(dir, "secrets"), kind, file}
	}
	cmd := exec.Command(built(t, gatewayBinary), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	p.yaml, p.stderr = out.String(), errs.String()
	if lost := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &lost) || lost.ExitCode() != 3 || !strings.Contains(config, "# not all")) {
		t.Fatalf("import: %v\n%s", err, p.stderr)
	}
	for name, addr := range known {
		if strings.HasPrefix(name, "LISTEN") {
			own := address(t)
			p.addrs[addr] = own
			p.yaml = strings.ReplaceAll(p.yaml, fmt.Sprintf("listen: %q", addr), fmt.Sprintf("listen: %q", own))
			p.servers[name] = addr
			eventually(t, kind+" listens", func() error {
				c, err := net.DialTimeout("tcp", addr, time.Second)
				if err == nil {
					_ = c.Close()
				}
				return err
			})
		}
	}
	startGateway(t, p.yaml)
	return p
}

// pageText is the text of page.html, which is in the folder of each configuration.
const pageText = "we are back soon"

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// same sends requests to both, and compares what is seen.
func (p *peer) same(listen, scheme string, methods, hosts, targets []string, headers ...http.Header) {
	p.t.Helper()
	addr, failures := p.servers["LISTEN("+listen+")"], 0
	for _, h := range append(headers, http.Header{}) {
		for _, host := range hosts {
			for _, target := range targets {
				for _, method := range methods {
					r, err := http.NewRequest(method, scheme+"://"+host+target, nil)
					if err != nil {
						p.t.Fatal(err)
					}
					r.Header = h
					want, err1 := observe(addr, r)
					got, err2 := observe(p.addrs[addr], r)
					want.unify()
					got.unify()
					if p.kind == "nginx" { // which writes its own
						delete(want.Answer, "Server")
						delete(got.Answer, "Server")
					}
					if w, g := fmt.Sprintf("%+v %v", want, err1 == nil), fmt.Sprintf("%+v %v", got, err2 == nil); w != g {
						failures++
						p.t.Errorf("%s %s%s %v\n the gateway: %s %v\n the other:   %s %v", method, host, target, h, g, err2, w, err1)
					}
					if failures > 10 {
						p.t.Fatalf("%s\n%s", p.stderr, p.yaml)
					}
				}
			}
		}
	}
	if failures > 0 {
		p.t.Logf("%s\n%s", p.stderr, p.yaml)
	}
}

// unify makes equal what docs/moving.md says is different: the status where no server can be reached, and random cookies.
func (s *observed) unify() {
	if s.Status == http.StatusServiceUnavailable {
		s.Status = http.StatusBadGateway
	}
	if c := s.Answer["Set-Cookie"]; c != "" {
		s.Answer["Set-Cookie"], _, _ = strings.Cut(c, "=")
	}
	if l, err := url.Parse(s.Answer["Location"]); err == nil && s.Answer["Location"] != "" && (l.Port() != "" || l.Host == "") { // of the address that was asked
		s.Answer["Location"] = l.RequestURI()
	}
	if s.Name == "" {
		delete(s.Answer, "Server")
	}
	for name, values := range s.Request { // HAProxy sends headers without a value, too
		if strings.Join(values, "") == "" {
			delete(s.Request, name)
		}
	}
}

// startHAProxy runs HAProxy.
func startHAProxy(t *testing.T) func(file string) {
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		if bin, err = exec.LookPath("/usr/sbin/haproxy"); err != nil {
			t.Fatalf("this test needs HAProxy (install the package haproxy): %v", err)
		}
	}
	return func(file string) {
		out, code := run(t, patience, bin, "-c", "-f", file)
		if code != 0 {
			t.Fatalf("HAProxy does not accept the configuration: %s", out)
		}
		start(t, exec.Command(bin, "-db", "-f", file))
	}
}

const haproxyDefaults = `
global
    maxconn 500
defaults
    mode http
    timeout connect 2s
    timeout client 20s
    timeout server 20s
    option redispatch
`

// TestImportedFromHAProxy: with the configuration that `headpond import` makes, the same server answers each request, with the
// same path and headers.
func TestImportedFromHAProxy(t *testing.T) {
	methods := []string{"GET", "POST", "DELETE"}
	hosts := []string{"www.example", "shop.example", "a.shop.example", "b.a.shop.example", "other.test"}
	targets := []string{"/", "/api", "/api/", "/api/x", "/apix", "/api/v1/y.css?q=1", "/static/a.css", "/a.css", "/a.cssx", "/a.js?v=2", "/admin", "/admin/x", "/administer", "/old", "/old/", "/old/x/y?z=1", "/x?v=2", "/users/7/edit?a=b", "/users/x", "/API/x", "/A.CSS", "/v1/api/x"}
	beta := http.Header{"X-Beta": {"1"}, "X-Secret": {"s"}}
	for name, c := range haproxyCases {
		t.Run(name, func(t *testing.T) {
			p := startPeer(t, "haproxy", haproxyDefaults+c.config, startHAProxy(t))
			if strings.Contains(c.config, "site.pem") {
				p.same("web", "https", methods[:1], hosts[:3], targets)
			} else {
				p.same("web", "http", methods, hosts, targets, beta, http.Header{"Cookie": {"a=b; stage=beta; team=0"}, "User-Agent": {"curl/8"}, "X-Cn": {"mallory"}},
					http.Header{"Authorization": {"Basic YW5uOnNlY3JldA=="}}, http.Header{"Authorization": {"Basic Ym9iOm90aGVy"}})
			}
			if c.plain {
				p.same("plain", "http", methods[:1], hosts[:1], targets)
			}
		})
	}
}

// wantNothing connects to a proxy that has no server to connect to: it ends the connection.
func wantNothing(t *testing.T, at string) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if errors.Is(err, syscall.ECONNRESET) { // before Dial has returned
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if n, err := io.Copy(io.Discard, c); n > 0 || os.IsTimeout(err) {
		t.Errorf("%s: %d bytes and %v from no server", at, n, err)
	}
}

// TestImportedTCPFromHAProxy: clients of TLS reach the same server by the name that they ask for.
func TestImportedTCPFromHAProxy(t *testing.T) {
	servers := map[string]string{}
	config := haproxyDefaults + `
frontend tls
    mode tcp
    bind LISTEN(tls)
    tcp-request inspect-delay 5s
    tcp-request content accept if { req_ssl_hello_type 1 }
    use_backend one if { req_ssl_sni -i one.example }
    use_backend two if { req.ssl_sni -m end .two.example } || { req.ssl_sni -i two.example }
    default_backend rest
backend one
    mode tcp
    server a TLS(one) check inter 200
    server b DOWN check backup
backend two
    mode tcp
    server a TLS(two)
backend rest
    mode tcp
    server a TLS(rest)
listen broken
    mode tcp
    bind LISTEN(broken)
    server a DOWN
`
	for _, name := range []string{"one", "two", "rest"} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
		s.StartTLS()
		t.Cleanup(s.Close)
		servers[name] = s.Listener.Addr().String()
		config = strings.ReplaceAll(config, "TLS("+name+")", servers[name])
	}
	p := startPeer(t, "haproxy", config, startHAProxy(t))
	addr := p.servers["LISTEN(tls)"]
	for _, name := range []string{"one.example", "ONE.example", "x.one.example", "two.example", "x.two.example", "y.x.two.example", "three.example", ""} {
		var answers []string
		for _, at := range []string{addr, p.addrs[addr]} {
			c, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, ServerName: name})
			if err != nil {
				t.Fatal(name, err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
			text, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(name, err)
			}
			_ = c.Close()
			answers = append(answers, string(text[bytes.LastIndexByte(text, '\n')+1:]))
		}
		if answers[0] != answers[1] || answers[0] == "" {
			t.Errorf("%q: %q, and HAProxy %q", name, answers[1], answers[0])
		}
	}
	for _, at := range []string{p.servers["LISTEN(broken)"], p.addrs[p.servers["LISTEN(broken)"]]} {
		wantNothing(t, at)
	}
	if !slices.Contains(strings.Split(p.stderr, "\n"), "") && strings.Contains(p.stderr, "NOT SUPPORTED") {
		t.Error(p.stderr)
	}
}
