package http3_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/http3"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/upstream"
)

// A program with a Proxy serves HTTP/3, too.
func Example() {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.URL.Path, r.Header.Get("X-Forwarded-Proto"))
	}))
	defer backend.Close()
	api, err := httpproxy.NewUpstream("api", httpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(backend.Listener.Addr().String())}})
	if err != nil {
		log.Fatal(err)
	}
	defer api.Close()
	server, client := certs.New().Configs()
	p, err := httpproxy.New(httpproxy.Config{TLS: server, Routes: []httpproxy.Route{{Path: "/", Upstream: api}}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := http3.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go p.Serve(l)

	tr := &quichttp3.Transport{TLSClientConfig: client}
	resp, err := (&http.Client{Transport: tr}).Get("https://" + l.Addr().String() + "/users")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.Proto, string(body))

	tr.Close()
	if err := p.Drain(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: HTTP/3.0 /users https
}
