package route_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/headpond/headpond/bench/internal/cpu"
)

// workload is one of the five workloads of W5.
type workload struct {
	name, method, contentType, body string
	parallel                        bool
}

func workloads() []workload {
	const short = `{"name":"Ada Lovelace","email":"ada@example.com","age":36,"country":"GB"}`
	long := `{"name":"` + strings.Repeat("x", 500) + `","email":"ada@example.com","age":36,"country":"GB"}`
	form := url.Values{"name": {"Ada Lovelace"}, "email": {"ada@example.com"}, "age": {"36"}, "country": {"GB"}}.Encode()
	return []workload{
		{"json", http.MethodPost, "application/json", short, false},
		{"form", http.MethodPost, "application/x-www-form-urlencoded", form, false},
		{"large", http.MethodPost, "application/json", long, false},
		{"parallel", http.MethodPost, "application/json", short, true},
		{"get", http.MethodGet, "", "", false},
	}
}

// client sends one request repeatedly. It reuses its own memory, so that it adds no cost to an arm.
type client struct {
	sample, sent *http.Request
	body         *strings.Reader
	read         io.ReadCloser
	text         string
	header       http.Header
	out          bytes.Buffer
	status       int
}

func newClient(w workload) *client {
	c := &client{text: w.body, header: http.Header{}, body: strings.NewReader(w.body)}
	c.sample = httptest.NewRequest(w.method, "/api/users", strings.NewReader(w.body))
	if w.contentType != "" {
		c.sample.Header.Set("Content-Type", w.contentType)
	} else {
		c.sample.Body = http.NoBody
	}
	c.read = io.NopCloser(c.body)
	c.sent = new(http.Request)
	return c
}

// Header, WriteHeader and Write implement http.ResponseWriter.
func (c *client) Header() http.Header         { return c.header }
func (c *client) WriteHeader(status int)      { c.status = status }
func (c *client) Write(b []byte) (int, error) { return c.out.Write(b) }

// send serves the request.
func (c *client) send(h http.Handler) {
	c.body.Reset(c.text)
	c.out.Reset()
	clear(c.header)
	*c.sent = *c.sample
	if c.text != "" {
		c.sent.Body = c.read
	}
	h.ServeHTTP(c, c.sent)
}

func BenchmarkRoute(b *testing.B) {
	for _, w := range workloads() {
		b.Run(w.name, func(b *testing.B) {
			for _, arm := range arms {
				if arm.name == "fuego" && w.name == "form" {
					continue // its library for forms does not bind numbers
				}
				if arm.name == "huma" && w.name == "form" {
					continue // it has no forms of this kind
				}
				b.Run(arm.name, func(b *testing.B) { run(b, w, arm.make()) })
			}
		})
	}
}

func run(b *testing.B, w workload, h http.Handler) {
	newClient(w).send(h)
	b.ReportAllocs()
	if !w.parallel {
		c := newClient(w)
		b.ResetTimer()
		defer reportCPU(b)()
		for range b.N {
			c.send(h)
		}
		return
	}
	b.ResetTimer()
	defer reportCPU(b)()
	b.RunParallel(func(pb *testing.PB) {
		c := newClient(w)
		for pb.Next() {
			c.send(h)
		}
	})
}

// Every arm gives the same answer, so the benchmarks compare the same work.
func TestArmsAgree(t *testing.T) {
	for _, w := range workloads() {
		want := ""
		for _, arm := range arms {
			if arm.name == "harness" || (arm.name == "huma" || arm.name == "fuego") && w.name == "form" {
				continue
			}
			c := newClient(w)
			c.send(arm.make())
			if got := strings.TrimSpace(c.out.String()); want == "" {
				want = got
			} else if got != want {
				t.Errorf("%s, %s: %d %s, want %s", w.name, arm.name, c.status, got, want)
			}
			if w.body == "" {
				continue
			}
			c.text = strings.NewReplacer("ada@example.com", "nobody", "ada%40example.com", "nobody").Replace(w.body)
			c.sample.ContentLength = int64(len(c.text))
			if c.send(arm.make()); c.status < 400 {
				t.Errorf("%s, %s: an invalid address is taken: %d %s", w.name, arm.name, c.status, c.out.String())
			}
		}
	}
}

// reportCPU returns a function that reports the processor time of the process per operation, including the garbage
// collector's. It varies less than wall time on a machine with other load.
func reportCPU(b *testing.B) func() {
	begin := cpu.Time()
	return func() { b.ReportMetric(float64(cpu.Time()-begin)/float64(b.N), "cpu-ns/op") }
}
