package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/certs"
)

// Paths of a Std backend, in addition to "/", which answers 128 bytes.
const (
	EventsPath = "/events" // an event stream: 10 events a second, each the time it was sent in nanoseconds
	DownPath   = "/down"   // ?size= bytes, as fast as they are taken
	UpPath     = "/up"     // takes a body, for the duration ?slow= slowly, and answers with its size
)

const (
	eventInterval = 100 * time.Millisecond
	// slowRead bytes each slowPause are 12 MiB/s.
	slowRead  = 64 << 10
	slowPause = 5 * time.Millisecond
)

// Slowly reads r to its end and returns the number of bytes. For the duration while it reads 64 KiB every 5 ms, then
// without a limit.
func Slowly(r io.Reader, while time.Duration) (int64, error) {
	buf := make([]byte, slowRead)
	total := int64(0)
	for began := time.Now(); time.Since(began) < while; time.Sleep(slowPause) {
		n, err := r.Read(buf)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf) // without io.Discard's ReadFrom, so that buf is used
	return total + n, err
}

// serveStd runs the standard library's server, with TLS if secure is set.
func serveStd(ctx context.Context, l net.Listener, secure bool, accepted *atomic.Int64) error {
	mux := http.NewServeMux()
	mux.HandleFunc(EventsPath, events)
	mux.HandleFunc(DownPath, down)
	mux.HandleFunc(UpPath, up)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, bodySize)) })
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: protocols, Handler: mux, ReadHeaderTimeout: time.Minute, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			accepted.Add(1)
		}
	}}
	if secure {
		cfg, _ := certs.New().Configs()
		cfg.NextProtos = []string{"http/1.1"}
		l = tls.NewListener(l, cfg)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

func events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // tells nginx to forward each event at once
	flush := http.NewResponseController(w)
	tick := time.NewTicker(eventInterval)
	defer tick.Stop()
	for {
		if _, err := fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixNano()); err != nil || flush.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

func down(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.FormValue("size"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	_ = Produce(w, size, make([]byte, bulk)) // on an error the client sees a short body
}

func up(w http.ResponseWriter, r *http.Request) {
	slow, err := time.ParseDuration(r.URL.Query().Get("slow"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n, err := Slowly(r.Body, slow)
	if err != nil {
		return // the client is gone
	}
	_, _ = fmt.Fprint(w, n)
}
