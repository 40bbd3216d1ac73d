package route_test

import (
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// TestServe serves an arm on the loopback for a load generator of its own process, as long as it is told:
//
//	ROUTE_ARM=gin ROUTE_LISTEN=127.0.0.1:9300 ROUTE_FOR=20s go test -run '^TestServe$' ./route
//
// Without ROUTE_ARM it checks that an arm can be served.
func TestServe(t *testing.T) {
	arm, listen, lasts := "pooled", "127.0.0.1:0", time.Duration(0)
	if name := os.Getenv("ROUTE_ARM"); name != "" {
		arm, listen = name, os.Getenv("ROUTE_LISTEN")
		var err error
		if lasts, err = time.ParseDuration(os.Getenv("ROUTE_FOR")); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range arms {
		if a.name != arm {
			continue
		}
		server := &http.Server{Handler: a.make()}
		go server.Serve(ln)
		resp, err := http.Get("http://" + ln.Addr().String() + "/api/users")
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", resp, err)
		}
		<-time.After(lasts)
		server.Close()
	}
}
