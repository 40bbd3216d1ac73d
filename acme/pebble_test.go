package acme_test

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
)

// pebbleVariable makes this test's program Pebble, Let's Encrypt's authority for tests, in a process of its own: it never ends.
const pebbleVariable = "HEADPOND_TEST_PEBBLE"

func TestMain(m *testing.M) {
	if text := os.Getenv(pebbleVariable); text != "" {
		runPebble(text)
		os.Exit(1)
	}
	if server := os.Getenv(recordVariable); server != "" {
		os.Exit(changeRecord(server, os.Args[1:]))
	}
	leaktest.Main(m)
}

// pebbleConfig is what a Pebble is told.
type pebbleConfig struct {
	HTTP, TLS int      // the ports at which it checks names
	Cert, Key string   // files of its own certificate
	Validity  uint64   // of certificates, in seconds; 0: 90 days
	Blocked   []string // names that it refuses
	Resolver  string   // of names; "": all are at 127.0.0.1
	EAB       string   // the key of its only customer, in base64url; "": everybody may have an account
}

// runPebble writes its address to file 3.
func runPebble(text string) {
	var c pebbleConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		log.Fatal(err)
	}
	if c.Resolver == "" {
		names, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			log.Fatal((&dns.Server{Listener: names, Handler: dns.HandlerFunc(resolve)}).ActivateAndServe())
		}()
		c.Resolver = names.Addr().String()
	}
	logger := log.New(os.Stdout, "pebble ", 0)
	store := db.NewMemoryStore()
	for _, name := range c.Blocked {
		if err := store.AddBlockedDomain(name); err != nil {
			log.Fatal(err)
		}
	}
	if c.EAB != "" {
		if err := store.AddExternalAccountKeyByID("customer", c.EAB); err != nil {
			log.Fatal(err)
		}
	}
	authority := ca.New(logger, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "of tests", ValidityPeriod: c.Validity}})
	validator := va.New(logger, c.HTTP, c.TLS, true, c.Resolver, store)
	front := wfe.New(logger, store, validator, authority, nil, true, c.EAB != "", 0, 0)
	both := http.NewServeMux()
	both.Handle("/", front.Handler())
	both.Handle(wfe.RootCertPath, front.ManagementHandler())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	_, _ = fmt.Fprintln(os.NewFile(3, "address"), l.Addr())
	log.Fatal(http.ServeTLS(l, both, c.Cert, c.Key))
}

// resolve answers questions for names.
func resolve(w dns.ResponseWriter, q *dns.Msg) {
	answer := new(dns.Msg).SetReply(q)
	if q.Question[0].Qtype == dns.TypeA {
		answer.Answer = append(answer.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(127, 0, 0, 1)})
	}
	_ = w.WriteMsg(answer)
}

// pebble is an authority for tests.
type pebble struct {
	address string // its own
	front   *front // before it, so that another one can take its place
	ca, key string // files, its own certificate
	process *conntest.Process
	pool    *x509.CertPool

	http, tls *front // where it checks names
}

// startPebble starts an authority.
func startPebble(t *testing.T, c pebbleConfig, environment ...string) *pebble {
	t.Helper()
	p := &pebble{front: newFront(t), http: newFront(t), tls: newFront(t)}
	if c.Cert == "" {
		own := certs.New()
		p.pool = own.Pool
		c.Cert, c.Key = writePair(t, own)
	}
	p.ca, p.key, c.HTTP, c.TLS = c.Cert, c.Key, p.http.port(t), p.tls.port(t)
	p.start(t, c, environment...)
	return p
}

// writePair writes an authority's certificate and key to files.
func writePair(t *testing.T, a *certs.Authority) (certFile, keyFile string) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "own.crt"), filepath.Join(dir, "own.key")
	cert, key := certs.PEM(a.Certificate)
	for path, text := range map[string][]byte{certFile: cert, keyFile: key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// start starts the process, of which the front is told.
func (p *pebble) start(t *testing.T, c pebbleConfig, environment ...string) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), pebbleVariable+"="+string(text), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0")
	cmd.Env = append(cmd.Env, environment...)
	said := &conntest.Log{}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = said, said, []*os.File{w}
	p.process = conntest.Start(t, cmd)
	_ = w.Close()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pebble:\n%s", said)
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("pebble: %v\n%s", err, said)
	}
	p.address = strings.TrimSpace(line)
	p.front.to(p.address)
}

// directory is the URL of its directory.
func (p *pebble) directory() string { return "https://" + p.front.address + wfe.DirectoryPath }

// roots returns the authority of its certificates.
func (p *pebble) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	client := clientOf(p.pool, "127.0.0.1")
	defer client.CloseIdleConnections()
	resp, err := client.Get("https://" + p.address + wfe.RootCertPath + "0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatalf("root: %s %v", text, err)
	}
	return roots
}

// front is a port in front of a server that is not known yet: its connections wait.
type front struct {
	address string
	target  atomic.Pointer[string]
	known   chan struct{}
	ended   chan struct{}
}

func newFront(t *testing.T) *front {
	f := &front{known: make(chan struct{}), ended: make(chan struct{})}
	f.address = conntest.Serve(t, f.serve)
	t.Cleanup(func() { close(f.ended) })
	return f
}

// to says where connections go from now on.
func (f *front) to(address string) {
	if f.target.Swap(&address) == nil {
		close(f.known)
	}
}

func (f *front) serve(c *net.TCPConn) {
	select {
	case <-f.known:
	case <-f.ended:
		return
	}
	to, err := net.Dial("tcp", *f.target.Load())
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(to, c)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, to)
	_ = c.Close()
	<-done
}

func (f *front) port(t *testing.T) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", f.address)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

// replace has another authority in its place, at the same URLs and with the same certificate of its own.
func (p *pebble) replace(t *testing.T, by *pebble) {
	t.Helper()
	_ = p.process.Cmd.Process.Kill()
	_ = p.process.Wait()
	p.front.to(by.address)
}
