package tcpproxy_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// Two web servers behind one address: the name in the ClientHello decides, and TLS is between client and server.
func ExampleRoute() {
	var routes []tcpproxy.Route
	for _, name := range []string{"shop.example", "*.blog.example"} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s, from the server of %s", r.TLS.ServerName, name)
		}))
		server.StartTLS()
		defer server.Close()
		up, err := tcpproxy.NewUpstream(name, tcpproxy.UpstreamOptions{Settings: upstream.Settings{
			Endpoints: upstream.Endpoints(server.Listener.Addr().String()),
		}})
		if err != nil {
			log.Fatal(err)
		}
		defer up.Close()
		routes = append(routes, tcpproxy.Route{SNI: []string{name}, Upstream: up})
	}
	proxy, err := tcpproxy.New(tcpproxy.Config{Listener: listener.Config{Name: "web", Protocol: "tcp"}, Routes: routes})
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go proxy.Serve(l)
	defer proxy.Close()

	for _, name := range []string{"shop.example", "my.blog.example"} {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{ServerName: name, InsecureSkipVerify: true}, // the servers' certificates are made up
			DisableKeepAlives: true,
		}}
		resp, err := client.Get("https://" + l.Addr().String())
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(string(body), err)
	}
	// Output:
	// shop.example, from the server of shop.example <nil>
	// my.blog.example, from the server of *.blog.example <nil>
}
