package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// TestSoakReloads changes the configuration each second while answers come late, event streams pause and upgraded connections are idle:
// sessions that wait without a stack. None of them may fail or get a wrong byte, and nothing is left of them. It has three reloads, or
// those of HEADPOND_SOAK (`make soak`). A lost session is shown with what its server and the gateway say of its end.
func TestSoakReloads(t *testing.T) {
	length, _ := conntest.SoakLength(t, 3*time.Second)
	echoes := &echoEnds{}
	backend := httptest.NewServer(pausing(echoes))
	t.Cleanup(backend.Close)
	web := address(t)
	config := func(i int) string {
		return fmt.Sprintf(`listeners:
  - {name: web, protocol: http, listen: %q, http: {routes: [{path: /, upstream: api%s%s}]}}
upstreams:
  api: {endpoints: [%q], connect_timeout: 30s, pool: {max_size: %d, acquire_timeout: 30s}}
`, web, []string{"", ", compress: {}"}[i%2], []string{"", ", mirror: api"}[i/2%2], backend.Listener.Addr(), 64+i%3)
	}
	g := startGateway(t, config(0), verbose)
	before := g.footprint()
	loads := map[string]*load{"upgraded": startLoad(t, 8, noFailure(t, echoes.talking(g, web)))}
	var ends []func()
	for _, proto := range []string{"http1", "h2c"} {
		client, end := webClient(proto)
		ends = append(ends, end)
		loads[proto] = startLoad(t, 8, noFailure(t, readPausing(client, "http://"+web)))
	}
	for i, start := 1, time.Now(); time.Since(start) < length; i++ {
		pause(t.Context(), time.Second)
		g.write(config(i))
		g.signal(syscall.SIGHUP)
	}
	for name, l := range loads {
		l.awaitMore(t, 1)
		l.end()
		t.Logf("%s: %d operations", name, l.ok.Load())
	}
	for _, end := range ends {
		end()
	}
	g.awaitFootprint(before)
	m := g.scrape()
	if n := m.sum("headpond_engine_fiber_panics_total") + m.sum("headpond_listener_errors_total", `reason="internal"`); n > 0 {
		t.Errorf("%v sessions panicked", n)
	}
}

// noFailure wraps an operation that must not fail.
func noFailure(t *testing.T, op func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := op(ctx)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		return err
	}
}

// echoEnds has how the echo of each upgraded session has ended for the server, by the session's number.
type echoEnds struct{ of sync.Map }

// talking is an operation of upgraded sessions. Its error has how the session ended for the server and for the gateway.
func (e *echoEnds) talking(g *gateway, addr string) func(context.Context) error {
	var n atomic.Int64
	return func(ctx context.Context) error {
		name := strconv.FormatInt(n.Add(1), 10)
		from, err := talkUpgraded(ctx, addr, name)
		at := time.Now()
		defer e.of.Delete(name)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, patience/10) // for the others to notice the end
		server, _ := e.of.Load(name)
		gateway := "nothing"
		for line := range strings.Lines(g.out.String()) { // the last one, as others may have had the port before
			if strings.Contains(line, "upgraded connection ended") && strings.Contains(line, fmt.Sprintf("client=%v ", from)) {
				gateway = line
			}
		}
		return fmt.Errorf("session %s from %v at %v: %w; its server: %v; the gateway: %s", name, from, at.UTC(), err, server, gateway)
	}
}

// pausing answers /n/pieces/ms with n pieces of 1,000 bytes, each after a pause, and echoes what comes on upgraded connections.
func pausing(echoes *echoEnds) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{n}/pieces/{ms}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		ms, _ := strconv.Atoi(r.PathValue("ms"))
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			pause(r.Context(), time.Duration(ms)*time.Millisecond)
			_, _ = io.WriteString(w, strings.Repeat(string(rune('a'+i)), 1000))
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("GET /echo/{name}", func(w http.ResponseWriter, r *http.Request) {
		c, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, upgraded)
		n, err := io.Copy(c, buffered)
		echoes.of.Store(r.PathValue("name"), fmt.Sprintf("%d bytes until %v, %v", n, time.Now().UTC(), err))
	})
	return mux
}

const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"

// readPausing reads an answer of a few pieces, the first of which may be late enough for its session to rest.
func readPausing(client *http.Client, at string) func(context.Context) error {
	return func(ctx context.Context) error {
		n := 1 + rand.IntN(4)
		resp, err := ask(ctx, client, http.MethodGet, fmt.Sprintf("%s/%d/pieces/%d", at, n, rand.IntN(1500)), nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		var want []byte
		for i := range n {
			want = append(want, bytes.Repeat([]byte{byte('a' + i)}, 1000)...)
		}
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("%w: %d bytes of %d", errWrong, len(got), len(want))
		}
		return err
	}
}

// talkUpgraded upgrades a connection, and sends pieces of all sizes with pauses, which the server echoes.
func talkUpgraded(ctx context.Context, addr, name string) (from net.Addr, err error) {
	c, err := net.DialTimeout("tcp", addr, opTimeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	from = c.LocalAddr()
	say := func(what string, want int) ([]byte, error) {
		_ = c.SetDeadline(time.Now().Add(opTimeout))
		got := make([]byte, want)
		_, err := io.WriteString(c, what)
		if err == nil {
			_, err = io.ReadFull(c, got)
		}
		return got, err
	}
	answer, err := say("GET /echo/"+name+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", len("HTTP/1.1 101"))
	if err != nil || string(answer) != "HTTP/1.1 101" {
		return from, fmt.Errorf("upgrade: %q, %w", answer, err)
	}
	for one := make([]byte, 1); !bytes.HasSuffix(answer, []byte("\r\n\r\n")); answer = append(answer, one...) {
		if _, err := io.ReadFull(c, one); err != nil {
			return from, fmt.Errorf("the head of an upgrade: %w", err)
		}
	}
	for i := range 5 {
		piece := strings.Repeat(string(rune('a'+i)), 1+rand.IntN(60_000))
		got, err := say(piece, len(piece))
		if err == nil && string(got) != piece {
			err = errWrong
		}
		if err != nil {
			return from, fmt.Errorf("piece %d of %d bytes: %w", i, len(piece), err)
		}
		pause(ctx, time.Duration(rand.IntN(500))*time.Millisecond)
	}
	return from, nil
}
