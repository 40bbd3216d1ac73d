package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/pool/httppool"
)

// webLibrary is W2b with the library in a program, without a proxy.
func (e *Env) webLibrary() run.Group {
	return run.Group{Name: "HTTP library", Prepare: e.prepareWeb, Arms: []run.Arm{
		e.rawArm(), e.transportArm("stdlib", func(dial dialer) (http.RoundTripper, func(), error) {
			t := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 100, DisableCompression: true}
			return t, t.CloseIdleConnections, nil
		}), e.transportArm("headpond", func(dial dialer) (http.RoundTripper, func(), error) {
			t, err := httppool.NewTransport(httppool.Config{Dial: func(ctx context.Context, address string) (net.Conn, error) {
				return dial(ctx, "tcp", address)
			}})
			if err != nil {
				return nil, nil, err
			}
			return t, t.Close, nil
		}),
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W2b/library", Suite: "http",
			Metrics: []string{result.CPUNs, result.NsOp, result.AllocsOp, result.BytesOp, result.P99, result.Reuse},
			Title:   "HTTP library: GET, 128 bytes, one after the other, by http.Transport and httppool.Transport",
			Note:    "raw writes the request and reads the answer without looking at it: what the system's calls cost. The request is made anew each time",
		},
		Baselines: []string{"stdlib"}, Open: openLibrary,
	}}}
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// counted returns a dialer that counts the connections it opens.
func counted(opened *atomic.Int64) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// transportArm sends requests with a RoundTripper and a cancelable context, as programs do, and reads the bodies.
func (e *Env) transportArm(name string, start func(dialer) (http.RoundTripper, func(), error)) run.Arm {
	return libraryArm(name, func(context.Context) (library, error) {
		opened := new(atomic.Int64)
		t, end, err := start(counted(opened))
		if err != nil {
			return library{}, err
		}
		url, buf := "http://"+e.web.Addr+"/", make([]byte, 4<<10)
		return repeated(1, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			resp, err := t.RoundTrip(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			n, err := io.ReadFull(resp.Body, buf)
			if !errors.Is(err, io.ErrUnexpectedEOF) || int64(n) != resp.ContentLength || resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s with %d bytes of body, %w", resp.Status, n, err)
			}
			return nil
		}).pooling(opened.Load, end), nil
	})
}

// rawArm writes the same request to a connection and reads once.
func (e *Env) rawArm() run.Arm {
	return libraryArm("raw", func(ctx context.Context) (library, error) {
		opened := new(atomic.Int64)
		c, err := counted(opened)(ctx, "tcp", e.web.Addr)
		if err != nil {
			return library{}, err
		}
		request, buf := []byte("GET / HTTP/1.1\r\nHost: "+e.web.Addr+"\r\n\r\n"), make([]byte, 4<<10)
		return repeated(1, func(context.Context) error {
			if _, err := c.Write(request); err != nil {
				return err
			}
			_, err := c.Read(buf)
			return err
		}).pooling(opened.Load, func() { _ = c.Close() }), nil
	})
}
