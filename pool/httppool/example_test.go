package httppool_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/headpond/headpond/pool/httppool"
)

// A forwarder in three lines. With gin the last is router.Any("/*path", gin.WrapH(forward)).
func Example() {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s for %s", r.URL.Path, r.Header.Get("X-Forwarded-For"))
	}))
	defer backend.Close()

	mux := http.NewServeMux()
	forward, err := httppool.Forward(backend.URL)
	if err != nil {
		log.Fatal(err)
	}
	mux.Handle("/", forward)

	defer forward.Close()
	front := httptest.NewServer(mux)
	defer front.Close()
	resp, err := http.Get(front.URL + "/hello")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(string(body))
	http.DefaultClient.CloseIdleConnections()
	// Output: /hello for 127.0.0.1
}

// A client over pooled connections.
func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hi") }))
	defer server.Close()

	transport, err := httppool.NewTransport(httppool.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer transport.Close()
	client := &http.Client{Transport: transport}
	for range 3 {
		resp, err := client.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	p := transport.Stats().Pools[0]
	fmt.Println("opened", p.Opened, "reused", p.Reused)
	// Output: opened 1 reused 2
}
