package mux_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/mux"
)

// aStream opens a stream and returns both ends, which are closed when the test ends.
func aStream(t *testing.T, c, s *mux.Session) (here, there *mux.Stream) {
	t.Helper()
	here, err := c.OpenStream(bg, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if there, err = s.AcceptStream(bg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there
}

// writePieces writes p in pieces of all sizes, from single bytes to more than a frame, and ends the direction.
func writePieces(t *testing.T, st *mux.Stream, p []byte) {
	r := rand.New(rand.NewPCG(5, 8))
	for len(p) > 0 {
		n := min(len(p), 1+r.IntN([]int{10, 1000, 20_000, 400_000}[r.IntN(4)]))
		if _, err := st.Write(p[:n]); err != nil {
			t.Error(err)
			return
		}
		p = p[n:]
	}
	if err := st.CloseWrite(); err != nil {
		t.Error(err)
	}
}

// copied lets the other end copy everything that is sent by WriteTo, and compares. The data is many times the windows.
func copied(t *testing.T, here, there *mux.Stream, between func(got int)) {
	t.Helper()
	sent := pattern(6 << 20)
	var work sync.WaitGroup
	work.Go(func() { writePieces(t, here, sent) })
	var got bytes.Buffer
	n, err := there.WriteTo(writerFunc(func(p []byte) (int, error) {
		between(got.Len())
		return got.Write(p)
	}))
	work.Wait()
	if err != nil || n != int64(len(sent)) || !bytes.Equal(got.Bytes(), sent) {
		t.Errorf("%d bytes were copied, %d arrived, %v, not the %d that were sent", n, got.Len(), err, len(sent))
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestStreamWriteTo: everything that is sent is written, over every transport.
func TestStreamWriteTo(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, name, mux.Config{}, mux.Config{})
			here, there := aStream(t, c, s)
			copied(t, here, there, func(int) {})
		})
	}
}

// TestStreamWriteToResumed is the same in sessions that outlive their connections, which are cut meanwhile.
func TestStreamWriteToResumed(t *testing.T) {
	for name, tls := range map[string]bool{"tcp": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			n := newLine(t, false, mux.Config{Resume: &mux.Resume{}})
			if tls {
				n.tls = mutual(newAuthority(), "client.test")
			}
			c, s := n.join(mux.Config{})
			here, there := aStream(t, c, s)
			cuts := 0
			copied(t, here, there, func(got int) {
				if got > cuts<<21 && cuts < 3 {
					n.cut(cuts % 2)
					cuts++
				}
			})
			if st := c.Stats(); st.Losses == 0 {
				t.Errorf("no connection was cut: %+v", st)
			}
			n.end(c, s)
		})
	}
}

// TestWriteToEnds: why WriteTo returns, and that the stream can be read on where it can.
func TestWriteToEnds(t *testing.T) {
	c, s := sessions(t, "tls", mux.Config{}, mux.Config{})
	send := func(st *mux.Stream, text string) {
		t.Helper()
		if _, err := io.WriteString(st, text); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("writer", func(t *testing.T) {
		here, there := aStream(t, c, s)
		send(here, "refused")
		full := errors.New("full")
		n, err := there.WriteTo(writerFunc(func([]byte) (int, error) { return 2, full }))
		if n != 2 || !errors.Is(err, full) {
			t.Errorf("%d, %v", n, err)
		}
		send(here, "read")
		if _, err := io.ReadFull(there, make([]byte, 4)); err != nil {
			t.Error(err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		here, there := aStream(t, c, s)
		_ = there.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, err := there.WriteTo(io.Discard); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", n, err)
		}
		_ = there.SetReadDeadline(time.Time{})
		send(here, "more")
		_ = here.CloseWrite()
		if n, err := there.WriteTo(io.Discard); n != 4 || err != nil {
			t.Errorf("afterwards: %d, %v", n, err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		here, there := aStream(t, c, s)
		here.Reset(7, "enough")
		if _, err := there.WriteTo(io.Discard); !errors.Is(err, mux.ErrReset) {
			t.Error(err)
		}
	})
	t.Run("closed while it writes", func(t *testing.T) {
		here, there := aStream(t, c, s)
		send(here, "some")
		if n, err := there.WriteTo(writerFunc(func(p []byte) (int, error) { return len(p), there.Close() })); n != 4 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%d, %v", n, err)
		}
	})
}
