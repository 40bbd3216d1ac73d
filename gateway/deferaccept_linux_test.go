package gateway_test

import (
	"testing"

	"github.com/headpond/headpond/gateway/config"
)

// TestDefersAccept changes the protocol at an address: only where clients speak first may the kernel wait for that.
func TestDefersAccept(t *testing.T) {
	server := echoServer(t)
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) {
			free := freeAddresses(t, 3)
			with := func(protocol, upstream string) *config.Config {
				return pair(t, engine, server, free[2], "one", free[0], "two", free[1], protocol, upstream)
			}
			g := run(t, with("tcp", "echo"))
			if g.DefersAccept("two") {
				t.Error("tcp defers at the start")
			}
			for _, c := range []struct {
				protocol, upstream string
				defers             bool
			}{{"http", "web", true}, {"tcp", "echo", false}, {"http", "web", true}} {
				if err := g.Reload(with(c.protocol, c.upstream)); err != nil {
					t.Fatal(err)
				}
				if g.DefersAccept("two") != c.defers || g.DefersAccept("one") {
					t.Errorf("%s: defers %v, the tcp listener beside %v", c.protocol, g.DefersAccept("two"), g.DefersAccept("one"))
				}
			}
			sockets, err := g.Sockets()
			if err != nil {
				t.Fatal(err)
			}
			if takeOver(t, with("tcp", "echo"), sockets).DefersAccept("two") {
				t.Error("tcp defers in the next process")
			}
		})
	}
}
