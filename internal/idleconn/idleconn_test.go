//go:build unix

package idleconn_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/idleconn"
)

// pair returns two ends of a TCP connection.
func pair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	a, b := ends(t, "tcp")
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// look looks until the state is no longer Silent: what was sent is on its way.
func look(l *idleconn.Looker) idleconn.State {
	for {
		if state := l.Look(); state != idleconn.Silent {
			return state
		}
	}
}

func TestSocket(t *testing.T) {
	near, far := pair(t)
	l := idleconn.New(near)
	if state := l.Look(); state != idleconn.Silent {
		t.Errorf("nothing sent: %v", state)
	}
	far.Write([]byte("x"))
	for range 2 { // it stays there
		if state := look(l); state != idleconn.Pending {
			t.Errorf("a byte sent: %v", state)
		}
	}
	if _, err := io.ReadFull(near, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	far.Close()
	if state := look(l); state != idleconn.Dead {
		t.Errorf("closed: %v", state)
	}
	near.Close()
	if state := l.Look(); state != idleconn.Dead {
		t.Errorf("closed on this side: %v", state)
	}
}

// TestEndBehindData: what was sent before the end does not hide it, nor does looking take a reset that is to be told.
func TestEndBehindData(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, broken := range []bool{false, true} {
			if network == "unix" && broken {
				continue // there are no resets there
			}
			t.Run(fmt.Sprintf("%s/broken=%v", network, broken), func(t *testing.T) {
				near, far := ends(t, network)
				l := idleconn.New(near)
				far.Write([]byte("220 ready"))
				if broken {
					far.(*net.TCPConn).SetLinger(0)
				}
				far.Close()
				for {
					if state := l.Look(); state == idleconn.Closing {
						break
					} else if state == idleconn.Dead {
						t.Fatal("there is something to read")
					}
				}
				if _, err := io.ReadFull(near, make([]byte, 9)); err != nil {
					t.Fatal(err)
				}
				if state := l.Look(); state != idleconn.Dead {
					t.Errorf("all is read: %v", state)
				}
				if _, err := near.Read(make([]byte, 1)); err != io.EOF != broken {
					t.Errorf("broken=%v, but a Read's error is %v", broken, err)
				}
			})
		}
	}
}

// ends returns two ends of a connection.
func ends(t *testing.T, network string) (near, far net.Conn) {
	t.Helper()
	at := "127.0.0.1:0"
	if network == "unix" {
		at = filepath.Join(t.TempDir(), "s")
	}
	near, far = conntest.Pair(t, network, at)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func TestPipe(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	if state := idleconn.New(near).Look(); state != idleconn.Unknown {
		t.Errorf("a pipe: %v", state)
	}
	for _, c := range []struct {
		over *over
		want idleconn.State
	}{
		{&over{Conn: near, quiet: true}, idleconn.Unknown},
		{&over{Conn: near}, idleconn.Pending},
		{&over{Conn: near, ended: true}, idleconn.Dead},
		{&over{Conn: near, closed: true}, idleconn.Closing},
	} {
		if state := idleconn.New(c.over).Look(); state != c.want {
			t.Errorf("%+v over a pipe: %v, want %v", c.over, state, c.want)
		}
	}
}

// over is a connection over another, as TLS is.
type over struct {
	net.Conn
	quiet, ended, closed bool
}

func (o *over) NetConn() net.Conn { return o.Conn }
func (o *over) Quiet() bool       { return o.quiet }
func (o *over) Ended() bool       { return o.ended }
func (o *over) PeerClosed() bool  { return o.ended || o.closed }

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
