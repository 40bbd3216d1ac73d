//go:build long

package peers_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// number reads a number from the environment.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNewcomer: in a network of HEADPOND_NODES nodes (200), five services each, one more learns of all of them. It logs how long that takes.
// A machine on which all these nodes in one process are too much loses records, and forgets nodes meanwhile: what counts is that each service
// becomes known.
func TestNewcomer(t *testing.T) {
	nodes := number(t, "HEADPOND_NODES", 200)
	tcp := []string{"/ip4/127.0.0.1/tcp/0"}
	var hubs []string
	for range 3 {
		hub, _ := start(t, peers.Config{Listen: tcp, Bootstrap: hubs})
		hubs = append(hubs, hub.Addrs()...)
	}
	services := func() (all []peers.Service) {
		for i := range 5 {
			all = append(all, to(fmt.Sprint("service-", i), "127.0.0.1:1"))
		}
		return all
	}
	for i := range nodes {
		start(t, peers.Config{Listen: tcp, Bootstrap: hubs[i%len(hubs) : i%len(hubs)+1], Services: services()})
	}
	seen, _ := start(t, peers.Config{Listen: tcp, Bootstrap: hubs[:1]})
	learns(t, "the network knows itself", seen, 5*nodes)
	began := time.Now()
	late, _ := start(t, peers.Config{Listen: tcp, Bootstrap: hubs[1:2]})
	learns(t, "the newcomer knows all", late, 5*nodes)
	t.Logf("%d services on %d nodes: the newcomer knows all after %v", 5*nodes, nodes, time.Since(began).Round(time.Millisecond))
}

// learns waits until a node has known so many services, as long as it goes on to learn of more.
func learns(t *testing.T, what string, n *peers.Node, services int) {
	t.Helper()
	known := map[string]bool{}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for progress := time.Now(); len(known) < services; <-look.C {
		before := len(known)
		for _, o := range n.Offers() {
			known[o.Peer+"/"+o.Name] = true
		}
		if len(known) > before {
			progress = time.Now()
		} else if time.Since(progress) > conntest.Patience {
			t.Fatalf("%s: %d of %d services, and no more within %v", what, len(known), services, conntest.Patience)
		}
	}
}

// TestManyRequests: 10,000 connections to a service leave no goroutine and no memory behind, at either side.
func TestManyRequests(t *testing.T) {
	far, _ := start(t, peers.Config{Services: []peers.Service{echo(t)}})
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	connected(t, near, far)
	target := peers.Target{Peer: far.ID(), Service: "echo"}
	measure := func() (goroutines int, heap uint64) {
		conntest.Eventually(t, "nothing is open", func() bool { return near.Active()+far.Active() == 0 })
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	for range 500 {
		exchange(t, near, target, "to get warm")
	}
	before, heap := measure()
	ctx := t.Context() // one for all: soon keeps each until the end of the test
	for range 10_000 {
		c, err := near.Dial(ctx, target)
		if err != nil {
			t.Fatal(err)
		}
		conntest.Exchange(t, c, "there and back")
		_ = c.Close()
	}
	var after int
	var now uint64
	conntest.Eventually(t, "goroutines have ended", func() bool {
		after, now = measure()
		return after <= before+5
	})
	t.Logf("%d goroutines before, %d after; heap %d KiB before, %d KiB after", before, after, heap>>10, now>>10)
	if now > heap+8<<20 {
		t.Errorf("the heap has grown from %d to %d KiB", heap>>10, now>>10)
	}
}
