package gateway_test

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
)

// engineKinds are the values of `engine`; the system replaces those that it lacks by another one.
var engineKinds = []string{"auto", "epoll", "goroutine"}

// freeAddresses returns n addresses without a listener, which no other test gets.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	free := make([]string, n)
	for i := range free {
		free[i] = conntest.FreeAddress(t)
	}
	return free
}

const pairText = `
engine: {engine}
admin: {admin}
drain_timeout: 5m
listeners:
  - {name: {first}, protocol: tcp, listen: "{a}", upstream: echo}
  - {name: {second}, protocol: {protocol}, listen: "{b}", upstream: {upstream}}
upstreams:
  echo: {endpoints: ["{echo}"]}
  web: {endpoints: ["{echo}"]}
`

// pair is pairText with the values of its keys, in the order below.
func pair(t *testing.T, engine, echo string, values ...string) *config.Config {
	t.Helper()
	pairs := []string{"{engine}", engine, "{echo}", echo}
	for i, key := range []string{"{admin}", "{first}", "{a}", "{second}", "{b}", "{protocol}", "{upstream}"} {
		pairs = append(pairs, key, values[i])
	}
	return parse(t, pairText, pairs...)
}

// TestReloadExchangesAddresses: listeners exchange names and addresses within one reload, and clients that connect
// meanwhile are served.
func TestReloadExchangesAddresses(t *testing.T) {
	server := echoServer(t)
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) {
			free, unix := freeAddresses(t, 3), "unix:"+filepath.Join(t.TempDir(), "s")
			x, y, page := free[0], free[1], free[2]
			g := run(t, pair(t, engine, server, page, "one", x, "two", y, "tcp", "echo"))
			var done atomic.Bool
			var wg sync.WaitGroup
			for _, address := range []string{x, y} {
				wg.Go(func() {
					for !done.Load() {
						if err := exchange(address, "hello"); err != nil {
							t.Errorf("%s: %v", address, err)
							return
						}
					}
				})
			}
			c := dial(t, x)
			echo(t, c, "before")
			for i, cfg := range []*config.Config{
				pair(t, engine, server, page, "two", x, "one", y, "tcp", "echo"),      // exchanged
				pair(t, engine, server, page, "two", x, "three", y, "tcp", "echo"),    // renamed
				pair(t, engine, server, page, "three", x, "two", y, "tcp", "echo"),    // again
				pair(t, engine, server, unix, "four", x, "five", y, "tcp", "echo"),    // all at once, the page moves
				pair(t, engine, server, page, "five", x, "four", y, "tcp", "echo"),    // and back
				pair(t, engine, server, page, "five", x, "four", unix, "http", "web"), // another protocol
				pair(t, engine, server, unix, "five", x, "four", page, "tcp", "echo"), // the page's place for a listener's
				pair(t, engine, server, page, "five", x, "four", unix, "http", "web"), // and back
				pair(t, engine, server, page, "five", unix, "four", x, "http", "web"), // and so on
				pair(t, engine, server, page, "one", x, "two", y, "tcp", "echo"),
			} {
				if i == 5 { // y is given up
					done.Store(true)
					wg.Wait()
				}
				if err := g.Reload(cfg); err != nil {
					t.Fatalf("reload %d: %v", i, err)
				}
				l := cfg.Listeners
				if g.Addr(l[0].Name) != l[0].Listen || g.Addr(l[1].Name) != l[1].Listen || g.Addr("admin") != cfg.Admin {
					t.Fatalf("reload %d: %s %s %s", i, g.Addr(l[0].Name), g.Addr(l[1].Name), g.Addr("admin"))
				}
			}
			echo(t, c, "after") // the session of the first name is still there
			for _, address := range []string{x, y} {
				if err := exchange(address, "again"); err != nil {
					t.Error(err)
				}
			}
			if code, _, err := get(client(t), "http://"+page+"/healthz"); code != 200 {
				t.Errorf("the page: %d %v", code, err)
			}
		})
	}
}

// TestAddressesAreFreeAfterAReload: addresses that a reload gives up, or that a refused one had opened, are free at
// once.
func TestAddressesAreFreeAfterAReload(t *testing.T) {
	taken := conntest.Listen(t)
	defer func() { _ = taken.Close() }()
	server := echoServer(t)
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) {
			free, other := freeAddresses(t, 3), "unix:"+filepath.Join(t.TempDir(), "s")
			x, y, page := free[0], free[1], free[2]
			first := pair(t, engine, server, page, "one", x, "two", "127.0.0.1:0", "tcp", "echo")
			second := pair(t, engine, server, other, "one", y, "two", "127.0.0.1:0", "tcp", "echo")
			bad := pair(t, engine, server, other, "one", y, "two", taken.Addr().String(), "tcp", "echo")
			g := run(t, first)
			for i := range 20 {
				if err := g.Reload(bad); !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), `"two"`) {
					t.Fatalf("%d: %v", i, err)
				}
				for _, cfg := range []*config.Config{second, first} {
					if err := g.Reload(cfg); err != nil {
						t.Fatalf("%d: %v", i, err)
					}
				}
			}
		})
	}
}

// TestReloadSaysWhoHasTheAddress: an address that overlaps one of the gateway's own is refused, and the error does not
// blame another program.
func TestReloadSaysWhoHasTheAddress(t *testing.T) {
	server, free := echoServer(t), freeAddresses(t, 2)
	x, page := free[0], free[1]
	g := run(t, pair(t, "auto", server, page, "one", x, "two", "127.0.0.1:0", "tcp", "echo"))
	_, port, _ := net.SplitHostPort(x)
	err := g.Reload(pair(t, "auto", server, page, "one", "0.0.0.0:"+port, "two", "127.0.0.1:0", "tcp", "echo"))
	if !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), `listener "one" has it, as `+x) {
		t.Errorf("Reload = %v", err)
	}
	_, port, _ = net.SplitHostPort(page)
	err = g.Reload(pair(t, "auto", server, "localhost:"+port, "one", x, "two", "127.0.0.1:0", "tcp", "echo"))
	if !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), "the admin page has it, as "+page) {
		t.Errorf("Reload = %v", err)
	}
	echo(t, dial(t, x), "as before")
}

// TestEveryCloseWaits: a request that is never finished keeps the admin page, and with it each Close, from ending at once.
func TestEveryCloseWaits(t *testing.T) {
	var log conntest.Log
	ready := make(chan struct{})
	g, err := gateway.New(parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)),
		gateway.Options{Logger: log.Logger(), Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Run(t.Context()) }()
	<-ready
	page := dial(t, g.Addr("admin"))
	if _, err := io.WriteString(page, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /"); err != nil {
		t.Fatal(err)
	}
	if _, err := page.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if g.Close(); !strings.Contains(log.String(), "msg=stopped") {
				t.Error("Close has returned before the end")
			}
		})
	}
	wg.Wait()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
