//go:build unix

package fiber_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// look looks until the state is no longer Silent: the sent data is on its way.
func look(s fiber.Stream) fiber.State {
	for {
		if state := s.State(); state != fiber.Silent {
			return state
		}
	}
}

func TestStateOfSocket(t *testing.T) {
	near, far := ends(t, "tcp")
	l := fiber.StreamOf(near)
	if state := l.State(); state != fiber.Silent {
		t.Errorf("nothing sent: %v", state)
	}
	far.Write([]byte("x"))
	for range 2 { // it stays there
		if state := look(l); state != fiber.Pending {
			t.Errorf("a byte sent: %v", state)
		}
	}
	if _, err := io.ReadFull(near, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	far.Close()
	if state := look(l); state != fiber.Dead {
		t.Errorf("closed: %v", state)
	}
	near.Close()
	if state := l.State(); state != fiber.Dead {
		t.Errorf("closed on this side: %v", state)
	}
}

// TestEndBehindData: data before the end does not hide the end, and looking does not take the error of a reset.
func TestEndBehindData(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, broken := range []bool{false, true} {
			if network == "unix" && broken {
				continue // there are no resets there
			}
			t.Run(fmt.Sprintf("%s/broken=%v", network, broken), func(t *testing.T) {
				near, far := ends(t, network)
				l := fiber.StreamOf(near)
				far.Write([]byte("220 ready"))
				if broken {
					far.(*net.TCPConn).SetLinger(0)
				}
				far.Close()
				for {
					if state := l.State(); state == fiber.Closing {
						break
					} else if state == fiber.Dead {
						t.Fatal("there is something to read")
					}
				}
				if _, err := io.ReadFull(near, make([]byte, 9)); err != nil {
					t.Fatal(err)
				}
				if state := l.State(); state != fiber.Dead {
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

func TestStateOfPipe(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	if state := fiber.StreamOf(near).State(); state != fiber.Unknown {
		t.Errorf("a pipe: %v", state)
	}
}

// TestTLSRecords compares with cutting a stream whose records are known.
func TestTLSRecords(t *testing.T) {
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
		var r fiber.TLSRecords
		for at := 0; at < len(stream); {
			n := 1 + rnd.IntN(min(len(stream)-at, 300))
			r.Pass(stream[at : at+n])
			if at += n; r.Whole() != boundary[at] {
				t.Fatalf("at %d of %d: whole is %v", at, len(stream), r.Whole())
			}
		}
	}
}
