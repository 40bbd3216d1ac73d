package route_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/headpond/headpond/bench/internal/cpu"
)

// TestServe serves an arm on the loopback for a load generator of its own process, as long as it is told:
//
//	ROUTE_ARM=gin ROUTE_LISTEN=127.0.0.1:9300 ROUTE_FOR=20s go test -run '^TestServe$' ./route
//
// Without ROUTE_ARM it checks that an arm can be served. Beside the arms of the benchmark there is "prepared", which
// reads the body and writes an answer made before: what a framework that costs nothing would reach on net/http. /cpu
// answers with the processor time of the process in ns.
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
	for _, a := range append(arms, struct {
		name string
		make func() http.Handler
	}{"prepared", func() http.Handler { return http.HandlerFunc(prepared) }}) {
		if a.name != arm {
			continue
		}
		handler := a.make()
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/cpu" {
				fmt.Fprint(w, int64(cpu.Time()))
				return
			}
			handler.ServeHTTP(w, r)
		})}
		go server.Serve(ln)
		resp, err := http.Get("http://" + ln.Addr().String() + "/api/users")
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", resp, err)
		}
		<-time.After(lasts)
		server.Close()
	}
}

var (
	preparedBody   = []byte(`{"id":1,"name":"Ada Lovelace","email":"ada@example.com","age":36,"country":"GB"}`)
	preparedType   = []string{"application/json"}
	preparedLength = []string{strconv.Itoa(len(preparedBody))}
)

func prepared(w http.ResponseWriter, r *http.Request) {
	var b [512]byte
	for {
		if _, err := r.Body.Read(b[:]); err != nil {
			break
		}
	}
	h := w.Header()
	h["Content-Type"], h["Content-Length"] = preparedType, preparedLength
	_, _ = w.Write(preparedBody)
}
