package extension_test

import (
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// TestDHT: gateways that know the hub alone find each other, and the admin pages tell what part they have in the DHT.
func TestDHT(t *testing.T) {
	on := []string{"peers: {", "peers: {dht: true, "}
	hubKey, _ := keyOf(t)
	hub := run(t, hubKey, "", "", on...)
	aKey, _ := keyOf(t)
	a := run(t, aKey, hub.addrs(t), "", on...)
	bKey, _ := keyOf(t)
	b := run(t, bKey, hub.addrs(t), "", on...)
	conntest.Eventually(t, "they find each other", func() bool { return b.peer(a.id).Connected && a.peer(b.id).Connected })
	conntest.Eventually(t, "they have each other in their tables", func() bool { return a.self(t).DHT.Nodes == 2 && b.self(t).DHT.Nodes == 2 })
	if s := b.self(t).DHT; !s.On || !s.Server || s.Lookups != 0 {
		t.Errorf("%+v", s)
	}
	offKey, _ := keyOf(t)
	off := run(t, offKey, hub.addrs(t), "")
	conntest.Eventually(t, "it is connected", func() bool { return off.peer(hub.id).Connected })
	if s := off.self(t).DHT; s.On || s.Nodes != 0 {
		t.Errorf("%+v", s)
	}
}
