package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tunnel"
)

// A refusal is reported to the asking side, and to both logs.
func TestPolicy(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	_, port, _ := net.SplitHostPort(target)
	socket := unixEcho(t)
	for _, c := range []struct {
		rules, target string
		want          error // nil: allowed
	}{
		{"", target, tunnel.ErrRefused},
		{"127.0.0.1:*", target, nil},
		{"127.0.0.0/8:1-65535", target, nil},
		{"127.0.0.1:1", target, tunnel.ErrRefused},
		{"10.0.0.0/8:*", target, tunnel.ErrRefused},
		{"[::/0]:*", target, tunnel.ErrRefused},
		{"127.0.0.1:*", "[::ffff:127.0.0.1]:" + port, nil},
		{"localhost:*", "LocalHost:" + port, nil},
		{"localhost:*", target, tunnel.ErrRefused},
		{"127.0.0.0/8:*", "localhost:" + port, nil}, // by its address
		{"10.0.0.0/8:*", "localhost:" + port, tunnel.ErrRefused},
		{"other:*", "localhost:" + port, tunnel.ErrRefused},
		{"127.0.0.1:*", "127.0.0.1:0", tunnel.ErrRefused},
		{"127.0.0.1:*", "unix:" + socket, tunnel.ErrRefused},
		{"unix:" + socket, "unix:" + socket, nil},
		{"unix:" + socket, "unix:" + socket + "2", tunnel.ErrRefused},
		{"0.0.0.0/0:*", "upstream:db", tunnel.ErrRefused},
		{"127.0.0.1:*", "127.0.0.1:1", tunnel.ErrUnreachable},
	} {
		var rules []string
		if c.rules != "" {
			rules = append(rules, c.rules)
		}
		e := start(t, options{server: allow(rules...)})
		conn, err := e.client.Dial(soon(t), c.target)
		if !errors.Is(err, c.want) {
			t.Errorf("allow %q, %s: %v, want %v", c.rules, c.target, err, c.want)
		}
		if err == nil {
			conntest.Exchange(t, conn, "hello")
			_ = conn.Close()
			continue
		}
		if !strings.Contains(err.Error(), `tunnel "far"`) || !strings.Contains(err.Error(), c.target) {
			t.Errorf("the error does not say where: %v", err)
		}
		conntest.Eventually(t, "the far side's log", func() bool { return e.serverLog.Line("stream refused", "peer=branch", c.target) != "" })
		if st := e.server.Tunnel(); st.Refused+st.Failed != 1 || (st.Refused == 1) != errors.Is(c.want, tunnel.ErrRefused) {
			t.Errorf("%s: %+v", c.target, st)
		}
	}
}

// A Conn that did not wait learns of the refusal when it is read.
func TestRefusalIsRead(t *testing.T) {
	e := start(t, options{})
	c := open(t, e, "10.0.0.1:22")
	if _, err := io.ReadAll(c); !errors.Is(err, tunnel.ErrRefused) || !strings.Contains(err.Error(), `"10.0.0.1:22" is not allowed`) {
		t.Errorf("%v", err)
	}
}

func TestUpstream(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	asked := 0
	e := start(t, options{server: func(c *tunnel.ServerConfig) {
		c.Policy.Upstreams = map[string]func(context.Context) (net.Conn, error){
			"full": func(ctx context.Context) (net.Conn, error) {
				return nil, fmt.Errorf("%w for %s", tunnel.ErrBusy, tunnel.Caller(ctx))
			},
			"echo": func(ctx context.Context) (net.Conn, error) {
				asked++
				var d net.Dialer
				return d.DialContext(ctx, "tcp", target)
			},
			"down": func(context.Context) (net.Conn, error) { return nil, errors.New("every endpoint is out") },
		}
	}})
	conntest.Exchange(t, open(t, e, "upstream:echo"), "hello")
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if _, err := e.client.Dial(soon(t), "upstream:down"); !errors.Is(err, tunnel.ErrUnreachable) || !strings.Contains(err.Error(), "every endpoint is out") {
		t.Error(err)
	}
	if _, err := e.client.Dial(soon(t), "upstream:other"); !errors.Is(err, tunnel.ErrRefused) {
		t.Error(err)
	}
	if _, err := e.client.Dial(soon(t), "upstream:full"); !errors.Is(err, tunnel.ErrBusy) || !strings.Contains(err.Error(), "for branch") {
		t.Error(err)
	}
}

// A policy is replaced under a running tunnel.
func TestUpdatePolicy(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	var cfg tunnel.ServerConfig
	e := start(t, options{server: func(c *tunnel.ServerConfig) { allow(target)(c); cfg = *c }})
	running := open(t, e, target)
	conntest.Exchange(t, running, "before")
	cfg.Policy = tunnel.Policy{}
	if err := e.server.Update(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := e.client.Dial(soon(t), target); !errors.Is(err, tunnel.ErrRefused) {
		t.Error(err)
	}
	conntest.Exchange(t, running, "still there")
}

func TestParseRule(t *testing.T) {
	for _, text := range []string{"", "host", ":5432", "host:", "host:0", "host:65536", "host:9-8", "host:http", "10.0.0.1/8:80", "[::ffff:10.0.0.0/104]:80",
		"10.0.0.0/33:80", "*.example.org:443", "unix:", "unix:relative", "ho st:1", "fe80::1%eth0:80", "[fe80::1%eth0]:80", "1:2:3:4"} {
		if r, err := tunnel.ParseRule(text); !errors.Is(err, tunnel.ErrConfig) {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
	for _, text := range []string{"db.example:5432", "10.0.0.0/8:5432", "[2001:db8::/32]:443", "[::1]:8000-8080", "0.0.0.0/0:*", "unix:/run/pg"} {
		if r, err := tunnel.ParseRule(text); err != nil || r.String() != text {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, text := range []string{"db.example:5432", "10.0.0.0/8:5432", "[::1]:8000-8080", "unix:/run/pg"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := tunnel.ParseRule(text)
		if err != nil {
			if !errors.Is(err, tunnel.ErrConfig) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if again, err := tunnel.ParseRule(r.String()); err != nil || again != r {
			t.Errorf("%q is read as %v, and that as %v, %v", text, r, again, err)
		}
	})
}

func unixEcho(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return path
}
