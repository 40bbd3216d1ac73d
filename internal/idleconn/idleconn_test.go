//go:build unix

package idleconn_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/headpond/headpond/internal/idleconn"
)

// pair returns two ends of a TCP connection.
func pair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// look looks until the state is no longer Silent: what was sent is on its way.
func look(r *idleconn.Raw, p *[1]byte) (idleconn.State, bool) {
	for {
		if state, took := r.Look(p); state != idleconn.Silent {
			return state, took
		}
	}
}

func TestLookPlain(t *testing.T) {
	near, far := pair(t)
	r := idleconn.New(near)
	var p [1]byte
	if state, took := r.Look(&p); state != idleconn.Silent || took {
		t.Errorf("nothing sent: %v, %v", state, took)
	}
	far.Write([]byte("x"))
	if state, took := look(r, &p); state != idleconn.Pending || !took || p[0] != 'x' {
		t.Errorf("a byte sent: %v, %v, %q", state, took, p)
	}
	far.Close()
	if state, _ := look(r, &p); state != idleconn.Dead {
		t.Errorf("closed: %v", state)
	}
	inner, _ := net.Pipe()
	defer inner.Close()
	if state, _ := idleconn.New(inner).Look(&p); state != idleconn.Unknown {
		t.Errorf("a pipe: %v", state)
	}
}

func TestLookTLS(t *testing.T) {
	h := httptest.NewTLSServer(nil)
	h.Close()
	roots := x509.NewCertPool()
	roots.AddCert(h.Certificate())
	near, far := pair(t)
	server := tls.Server(far, &tls.Config{Certificates: h.TLS.Certificates})
	shaken := make(chan error, 1)
	go func() { shaken <- server.Handshake() }()
	r := idleconn.New(near)
	client := r.Client(&tls.Config{RootCAs: roots, ServerName: "example.com"})
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	var p [1]byte
	for range 3 { // the ticket does not count
		if state, took := r.Look(&p); state != idleconn.Silent || took {
			t.Fatalf("after the handshake: %v, %v", state, took)
		}
	}
	io.WriteString(server, "hello")
	if state, took := look(r, &p); state != idleconn.Pending || !took || p[0] != 'h' {
		t.Errorf("data sent: %v, %v, %q", state, took, p)
	}
	rest := make([]byte, 4)
	if _, err := io.ReadFull(client, rest); err != nil || string(rest) != "ello" {
		t.Errorf("the rest: %q, %v", rest, err)
	}
	if state, took := r.Look(&p); state != idleconn.Silent || took {
		t.Errorf("when all was read: %v, %v", state, took)
	}
	server.Close()
	if state, _ := look(r, &p); state != idleconn.Dead {
		t.Errorf("close_notify: %v", state)
	}
}

// TestRecords compares with cutting a stream whose records are known.
func TestRecords(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var stream []byte
		boundary := map[int]bool{0: true}
		for range rnd.IntN(5) {
			n := rnd.IntN(3) * rnd.IntN(400)
			stream = append(stream, 23, 3, 3, byte(n>>8), byte(n))
			stream = append(stream, make([]byte, n)...)
			boundary[len(stream)] = true
		}
		var r idleconn.Records
		for at := 0; at < len(stream); {
			n := 1 + rnd.IntN(min(len(stream)-at, 300))
			r.Pass(stream[at : at+n])
			if at += n; r.Whole() != boundary[at] {
				t.Fatalf("at %d of %d: whole is %v", at, len(stream), r.Whole())
			}
		}
	}
}
