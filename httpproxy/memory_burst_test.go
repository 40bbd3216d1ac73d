package httpproxy_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// burst is a backend that answers on request, and a client that sends many requests at once on one connection.
type burst struct {
	p       running
	client  *http.Client
	release chan struct{} // lets the backend answer

	asked, read, refused, answered atomic.Int64
	most                           atomic.Int64 // bytes that the proxy has held
}

// sample records what the proxy holds.
func (b *burst) sample() {
	now := b.p.Stats().Buffered
	for most := b.most.Load(); now > most && !b.most.CompareAndSwap(most, now); most = b.most.Load() {
	}
}

func (b *burst) serve(_ http.ResponseWriter, r *http.Request) {
	b.asked.Add(1)
	b.sample()
	_, _ = io.Copy(io.Discard, r.Body)
	b.read.Add(1)
	b.sample()
	<-b.release
}

// send sends a request. Failures fail the test, unless the proxy has refused the request and does not read its body.
func (b *burst) send(t *testing.T, method string, length int64, body io.Reader) {
	req, _ := http.NewRequestWithContext(t.Context(), method, b.p.url, body)
	req.ContentLength = length
	resp, err := b.client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	b.sample()
	switch text, _ := io.ReadAll(resp.Body); {
	case resp.StatusCode == 200:
		b.answered.Add(1)
	case resp.StatusCode == 503 && resp.Header.Get("Retry-After") == "1" && strings.Contains(string(text), "of this connection"):
		b.refused.Add(1)
	default:
		t.Errorf("%s: %s", resp.Status, text)
	}
}

// lateBody returns one byte, and the others when it may.
type lateBody struct {
	begun bool
	gate  chan struct{}
	rest  io.Reader
}

func (b *lateBody) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		return copy(p[:1], "x"), nil
	}
	<-b.gate
	return b.rest.Read(p)
}

// burstStreams is how many requests are sent at once. burstSlack is what a connection holds besides its requests: the
// buffer of its reader, frames for the client, and the answers to refused requests.
const (
	burstStreams = 90
	burstSlack   = 192 << 10
)

// all sends burstStreams requests, and returns how many the backend has got. The others have been refused.
func (b *burst) all(t *testing.T, kind string) int64 {
	t.Helper()
	gate, long := make(chan struct{}), strings.Repeat("x", 40<<10)
	b.release = make(chan struct{})
	b.asked.Store(0)
	b.read.Store(0)
	b.refused.Store(0)
	b.answered.Store(0)
	for range burstStreams {
		switch kind {
		case "small answers":
			go b.send(t, http.MethodGet, 0, nil)
		case "small bodies":
			go b.send(t, http.MethodPost, 9, strings.NewReader("unchanged"))
		case "long bodies":
			go b.send(t, http.MethodPut, int64(len(long)), strings.NewReader(long))
		case "late bodies":
			go b.send(t, http.MethodPut, int64(len(long)+1), &lateBody{gate: gate, rest: strings.NewReader(long)})
		case "chunks":
			go b.send(t, http.MethodPut, -1, &lateBody{gate: gate, rest: strings.NewReader(long)})
		}
	}
	eventually(t, "all requests are forwarded or refused", func() bool {
		b.sample()
		return b.asked.Load()+b.refused.Load() == burstStreams || t.Failed()
	})
	close(gate)
	eventually(t, "all bodies have come", func() bool {
		b.sample()
		return b.read.Load() == b.asked.Load() || t.Failed()
	})
	close(b.release)
	eventually(t, "all have their answers", func() bool { return b.answered.Load() == b.asked.Load() || t.Failed() })
	return b.asked.Load()
}

// TestMaxBufferedPerConnOfStreamsAtOnce: streams that begin together on a connection hold no more than the limit, however
// many they are and whatever their bodies do. The others are refused, and reservations are freed afterwards.
func TestMaxBufferedPerConnOfStreamsAtOnce(t *testing.T) {
	limit := 2 * httpproxy.LeastBufferedPerConn(0, 0)
	for _, kind := range []string{"small answers", "small bodies", "long bodies", "late bodies", "chunks"} {
		for _, proto := range []string{"h1", "h2c"} {
			t.Run(kind+" "+proto, func(t *testing.T) {
				b := &burst{client: clientFor(t, "HTTP/2.0")}
				var cfg httpproxy.Config
				if proto == "h1" {
					cfg = routeTo(newUpstream(t, serveHTTP(t, b.serve)))
				} else {
					cfg = routeTo(serveHTTP2(t, b.serve).upstream(t, httpproxy.ProtocolH2C))
				}
				cfg.MaxBufferedPerConn = limit
				b.p = startProxy(t, cfg)
				first := b.all(t, kind)
				if refused := b.refused.Load(); refused == 0 || first < 3 {
					t.Errorf("%d requests are forwarded, %d refused", first, refused)
				}
				again := b.all(t, kind)
				if again < 3 || kind == "small answers" && (again < first-3 || again > first+3) { // others differ by what is kept of bodies
					t.Errorf("%d requests are forwarded at first, %d later", first, again)
				}
				if most := b.most.Load(); most > limit+burstSlack {
					t.Errorf("%d KiB are held, of %d", most>>10, limit>>10)
				}
			})
		}
	}
}
