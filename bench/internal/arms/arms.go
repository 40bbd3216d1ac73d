// Package arms contains the proxies that run as processes of this program: the studies' arms, rebuilt from their
// descriptions, and proxies as short as a programmer would write them.
package arms

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/headpond/headpond/pool/httppool"
)

// Main serves the kind at address before target until ctx ends.
func Main(ctx context.Context, kind, address, target string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	if kind == "iocopy" {
		return copyBytes(ctx, l, target)
	}
	h, err := Handler(kind, target)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	err = unlessDone(ctx, s.Serve(l))
	return errors.Join(err, s.Close())
}

// unlessDone returns err, or nil if the listener was closed because ctx has ended.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// Handler is the proxy of a kind that speaks HTTP, before target (host:port).
func Handler(kind, target string) (http.Handler, error) {
	switch kind {
	case "http-old":
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { buffered(w, r, "http://"+target) }), nil
	case "https-old":
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { buffered(w, r, "https://"+target) }), nil
	case "http-new":
		return streamed(target), nil
	case "http-reverseproxy":
		return reverseProxy(target), nil
	case "http-library":
		return httppool.Forward("http://" + target)
	case "http-empty":
		return http.HandlerFunc(empty), nil
	}
	return nil, fmt.Errorf("no arm %q", kind)
}

// empty answers like the backend without contacting it: the cost of a handler that forwards nothing.
func empty(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		_, _ = io.Copy(io.Discard, r.Body)
		return
	}
	_, _ = w.Write(answer[:])
}

var answer [128]byte

// buffered is the old arm of the forwarder's study: it reads the whole body, and makes a transport for each request.
func buffered(w http.ResponseWriter, r *http.Request, target string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, target+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the certificate is of this run
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer)
}

// streamed is the study's new arm: the standard library's proxy with one transport that keeps 100 connections for 90
// seconds.
func streamed(target string) http.Handler {
	return &httputil.ReverseProxy{
		Transport: &http.Transport{MaxIdleConns: 100, MaxIdleConnsPerHost: 100, IdleConnTimeout: 90 * time.Second, DisableCompression: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: target})
			r.SetXForwarded()
		},
	}
}

// reverseProxy is the standard library's proxy with its best settings: unlimited idle connections, reused buffers, no
// compression, no log, writes of 64 KiB.
func reverseProxy(target string) http.Handler {
	backend := &url.URL{Scheme: "http", Host: target}
	return &httputil.ReverseProxy{
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 1 << 14, IdleConnTimeout: 90 * time.Second, DisableCompression: true,
			WriteBufferSize: proxyBuffer, ReadBufferSize: 4 << 10,
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(backend)
			r.SetXForwarded()
		},
		BufferPool: new(buffers),
		ErrorLog:   log.New(io.Discard, "", 0),
	}
}

const proxyBuffer = 64 << 10

// buffers is an httputil.BufferPool.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[proxyBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, proxyBuffer)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put((*[proxyBuffer]byte)(p)) }

// copyBytes is a TCP proxy that runs two io.Copy for each connection.
func copyBytes(ctx context.Context, l net.Listener, target string) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return unlessDone(ctx, err)
		}
		go copyConn(c.(*net.TCPConn), target) // ends with its connections
	}
}

func copyConn(client *net.TCPConn, target string) {
	defer client.Close()
	c, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	server := c.(*net.TCPConn)
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = copyHalf(server, client)
	}()
	_ = copyHalf(client, server)
	<-done
}

// copyHalf copies one direction and then half-closes the destination.
func copyHalf(dst, src *net.TCPConn) error {
	_, err := io.Copy(dst, src)
	return errors.Join(err, dst.CloseWrite())
}
