package httpproxy_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/upstream"
)

func Example() {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s from %s", r.URL.Path, r.Header.Get("X-Forwarded-For"))
	}))
	defer backend.Close()

	api, err := httpproxy.NewUpstream("api", httpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(backend.Listener.Addr().String())}})
	if err != nil {
		log.Fatal(err)
	}
	defer api.Close()
	p, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{{Path: "/api", StripPrefix: true, Upstream: api}}})
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go p.Serve(l)

	resp, err := http.Get("http://" + l.Addr().String() + "/api/users")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(string(body))

	http.DefaultClient.CloseIdleConnections()
	if err := p.Drain(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: /users from 127.0.0.1
}
