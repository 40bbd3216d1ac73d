package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
)

func Example() {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello from the backend") }))
	defer backend.Close()
	cfg, problems := config.Parse("headpond.yaml", []byte(`
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: api}
upstreams:
  api: {endpoints: ["`+backend.Listener.Addr().String()+`"]}
`))
	if err := problems.Err(); err != nil {
		fmt.Println(err)
		return
	}
	ready := make(chan struct{})
	gw, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.DiscardHandler), Started: func() { close(ready) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- gw.Run(ctx) }()
	<-ready

	conn, err := net.Dial("tcp", gw.Addr("web"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: example\r\nConnection: close\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	fmt.Println(string(answer[len(answer)-22:]))
	stop()
	fmt.Println(<-ended)
	// Output:
	// hello from the backend
	// <nil>
}
