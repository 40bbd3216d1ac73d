package peers_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/headpond/headpond/peers"
)

// A node offers a service, and another one calls it.
func Example() {
	ctx := context.Background()
	node := func(cfg peers.Config) *peers.Node {
		_, cfg.Key, _ = ed25519.GenerateKey(rand.Reader) // a program keeps it: LoadOrCreateKey
		cfg.Listen, cfg.Logger = []string{"/ip4/127.0.0.1/tcp/0"}, slog.New(slog.DiscardHandler)
		n, err := peers.New(cfg)
		if err != nil {
			panic(err)
		}
		return n
	}
	far := node(peers.Config{Services: []peers.Service{{
		Name: "greeting", Anyone: true,
		Connect: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				_, _ = io.WriteString(there, "hello from afar")
				_ = there.Close()
			}()
			return here, nil
		},
	}}})
	defer far.Close()
	near := node(peers.Config{Bootstrap: far.Addrs()})
	defer near.Close()

	for { // until it is connected
		c, err := near.Dial(ctx, peers.Target{Peer: far.ID(), Service: "greeting"})
		if err != nil {
			continue
		}
		text, err := io.ReadAll(c)
		fmt.Println(string(text), err, c.Close())
		break
	}
	// Output: hello from afar <nil> <nil>
}
