package integration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
)

// TestMuxFromPython runs a client that was written only from docs/mux-protocol.md against the
// library, to show that the page is precise enough.
func TestMuxFromPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("python3 is needed: ", err)
	}
	for name, key := range map[string]string{"plain": "", "psk": "a key of 16 bytes or more"} {
		t.Run(name, func(t *testing.T) {
			l := conntest.Listen(t)
			server := &muxServer{cfg: mux.Config{PSK: []byte(key), Resume: &mux.Resume{}}}
			server.work.Go(func() { server.serve(t, l) })
			host, port, _ := strings.Cut(l.Addr().String(), ":")
			args := []string{"testdata/mux_client.py", host, port}
			if key != "" {
				args = append(args, key)
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			out, err := exec.CommandContext(ctx, python, args...).CombinedOutput()
			l.Close()
			server.work.Wait()
			if err != nil || !bytes.HasSuffix(out, []byte("done\n")) {
				t.Fatalf("%v\n%s", err, out)
			}
			if n := server.resumed; n != 21 {
				t.Errorf("resumed %d times, want 21", n)
			}
		})
	}
}

// muxServer echoes on every channel of every session.
type muxServer struct {
	cfg  mux.Config
	work sync.WaitGroup

	mu      sync.Mutex
	resumed uint64
}

func (m *muxServer) serve(t *testing.T, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		m.work.Go(func() {
			s, err := mux.Server(context.Background(), conn, m.cfg)
			switch {
			case errors.Is(err, mux.ErrResumed), errors.Is(err, mux.ErrDenied):
			case err != nil:
				t.Error(err)
			default:
				m.session(s)
			}
		})
	}
}

// session serves a session until its client ends it.
func (m *muxServer) session(s *mux.Session) {
	ctx := context.Background()
	m.work.Go(func() {
		for {
			st, err := s.AcceptStream(ctx)
			if err != nil {
				return
			}
			m.work.Go(func() {
				io.Copy(st, st)
				st.Close()
			})
		}
	})
	for {
		ch, err := s.Accept(ctx)
		if err != nil {
			break
		}
		m.work.Go(func() { m.echo(ctx, ch) })
	}
	m.mu.Lock()
	m.resumed += s.Stats().Resumed
	m.mu.Unlock()
	s.Close()
}

func (m *muxServer) echo(ctx context.Context, ch *mux.Channel) {
	defer ch.Close()
	for {
		msg, err := ch.Receive(ctx)
		if err != nil {
			return
		}
		if string(msg.Bytes()) == "open one to me" {
			if back, err := ch.Session().Open(ctx, "from the server"); err == nil {
				back.Send(ctx, []byte("hello, python"))
			}
		}
		err = ch.Send(ctx, msg.Bytes())
		msg.Release()
		if err != nil {
			return
		}
	}
}
