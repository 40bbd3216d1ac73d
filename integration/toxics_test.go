package integration

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/headpond/headpond/internal/conntest"
)

// toxics are those of Toxiproxy. Each is tried in both directions, before and behind the gateway.
var toxics = []struct {
	name, attributes string
	breaks           bool // ends connections before all bytes have passed
}{
	{name: "latency", attributes: `{"latency": 20, "jitter": 10}`},
	{name: "bandwidth", attributes: `{"rate": 2000}`},
	{name: "slicer", attributes: `{"average_size": 500, "size_variation": 250, "delay": 50}`},
	{name: "slow_close", attributes: `{"delay": 100}`},
	{name: "timeout", attributes: `{"timeout": 100}`, breaks: true},
	{name: "reset_peer", attributes: `{"timeout": 10}`, breaks: true},
	{name: "limit_data", attributes: `{"bytes": 100000}`, breaks: true},
}

// startToxiproxy starts a proxy with a toxic in front of an address.
func startToxiproxy(t *testing.T, to, toxic, direction, attributes string) (address string) {
	t.Helper()
	p := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), t.Name(), "127.0.0.1:0", to)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if _, err := p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": %s}`, toxic, direction, attributes))); err != nil {
		t.Fatal(err)
	}
	return p.Listen
}

// TestToxics sends bytes to an echo server and back through the gateway and each of Toxiproxy's toxics. What comes back is what was sent, or
// the beginning of it where the toxic breaks the connection: then the session ends, and a reset stays one.
func TestToxics(t *testing.T) {
	sent := make([]byte, 256<<10)
	_, _ = rand.Read(sent)
	echo, _ := startEcho(t)
	var listeners, upstreams strings.Builder
	var cases []func(t *testing.T)
	var names []string
	for _, toxic := range toxics {
		for _, direction := range []string{"upstream", "downstream"} {
			for _, behind := range []bool{true, false} {
				name := strings.ReplaceAll(toxic.name, "_", "-") + "-" + direction
				listen, endpoint := address(t), echo
				at := listen
				if behind {
					name += "-behind"
					endpoint = startToxiproxy(t, echo, toxic.name, direction, toxic.attributes)
				} else {
					at = startToxiproxy(t, listen, toxic.name, direction, toxic.attributes)
				}
				fmt.Fprintf(&listeners, "  - {name: %s, protocol: tcp, listen: %q, upstream: %[1]s}\n", name, listen)
				fmt.Fprintf(&upstreams, "  %s: {endpoints: [%q]}\n", name, endpoint)
				names = append(names, name)
				cases = append(cases, func(t *testing.T) {
					back, err := echoed(t, at, sent)
					switch {
					case !bytes.HasPrefix(sent, back):
						t.Errorf("the %d bytes that came back are not the first that were sent", len(back))
					case !toxic.breaks && len(back) < len(sent):
						t.Errorf("%d of %d bytes came back: %v", len(back), len(sent), err)
					case toxic.breaks && len(back) == len(sent):
						t.Error("everything came back through a connection that breaks")
					case toxic.name == "reset_peer" && !errors.Is(err, syscall.ECONNRESET):
						t.Errorf("a reset has become %v", err)
					}
				})
			}
		}
	}
	g := startGateway(t, "listeners:\n"+listeners.String()+"upstreams:\n"+upstreams.String())
	var before footprint
	for round := range 2 { // the first shows what the gateway needs without sessions
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			for i, name := range names {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					cases[i](t)
				})
			}
		})
		eventually(t, "the sessions end", func() error {
			if now := g.footprint(); now.sessions > 0 {
				return fmt.Errorf("%+v", now)
			}
			return nil
		})
		if round == 0 {
			before = g.footprint()
		}
	}
	g.awaitFootprint(before)
}

// echoed sends bytes to an echo server, and returns what comes back, and the error that ended it if that is not all.
func echoed(t *testing.T, address string, sent []byte) ([]byte, error) {
	c := conntest.Dial(t, address)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	var writing sync.WaitGroup
	defer writing.Wait()
	defer func() { _ = c.SetDeadline(time.Unix(1, 0)) }()
	writing.Go(func() { _, _ = c.Write(sent) })
	back := make([]byte, len(sent))
	n, err := io.ReadFull(c, back)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		t.Errorf("the session neither goes on nor ends: %v", err)
	}
	return back[:n], err
}
