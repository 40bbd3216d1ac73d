package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// web is one of the HTTP backends: it answers with its name, and with how often its connections are
// reused.
type web struct {
	name     string
	requests atomic.Int64
	conns    atomic.Int64
	stop     chan struct{} // ends streams
	http     *http.Server
}

// connKey finds the state of a request's connection.
type connKey struct{}

// connState counts the requests of one connection.
type connState struct{ number, requests atomic.Int64 }

func newWeb(name string, logger *slog.Logger) *web {
	w := &web{name: name, stop: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /sse", w.stream)
	mux.HandleFunc("GET /headers", w.headers)
	mux.HandleFunc("/", w.hello)
	w.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute, // above the 60 s after which the gateway closes idle connections
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			s := &connState{}
			s.number.Store(w.conns.Add(1))
			return context.WithValue(ctx, connKey{}, s)
		},
	}
	return w
}

func (w *web) serve(l net.Listener) { go func() { _ = w.http.Serve(l) }() }

// Close ends the backend and its streams.
func (w *web) Close() error {
	close(w.stop)
	return w.http.Close()
}

func (w *web) hello(rw http.ResponseWriter, r *http.Request) {
	state, _ := r.Context().Value(connKey{}).(*connState)
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(rw, "Hello from backend %s: %s %s\nIts request %d, the %s on its connection %d.\n",
		w.name, r.Method, r.URL.Path, w.requests.Add(1), ordinal(state.requests.Add(1)), state.number.Load())
}

// headers shows the headers that the gateway sends.
func (w *web) headers(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(rw)
	enc.SetIndent("", "  ")
	_ = enc.Encode(map[string]any{"backend": w.name, "host": r.Host, "headers": r.Header})
}

// stream sends an event each second until the client leaves.
func (w *web) stream(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		if _, err := fmt.Fprintf(rw, "data: event %d from backend %s\n\n", n, w.name); err != nil {
			return
		}
		if err := http.NewResponseController(rw).Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-w.stop:
			return
		}
	}
}

// ordinal writes 1st, 2nd, 3rd, 4th …
func ordinal(n int64) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return fmt.Sprintf("%d%s", n, suffix)
}
