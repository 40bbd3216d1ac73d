package peers_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// The tables of these tests, and what is kept in them for whom.
const (
	nodes    = 400
	fromSite = nodes / peers.VouchedShare
	fromHubs = nodes / peers.TrustedShare
	invented = 2 * peers.MaxEntries / peers.VouchedShare // by a neighbour of a node
	believed = peers.MaxEntries / peers.VouchedShare
)

// take puts a record of a node that offers "s" into a table.
func take(table peers.Table, from peers.Source, id string, issued int, now time.Time) error {
	_, _, err := table.PutFrom(from, id, int64(issued), 10, time.Minute, now, "s")
	return err
}

// TestTableShares: neighbours at one address bring no more than their share, and others still find room.
func TestTableShares(t *testing.T) {
	table, now := peers.NewTable(nodes), time.Unix(1_000_000, 0)
	hostile := peers.Vouched("192.0.2.1")
	for i := range nodes {
		if err := take(table, hostile, fmt.Sprint("invented", i), 1, now); (err == nil) != (i < fromSite) || err != nil && !errors.Is(err, peers.ErrFull) {
			t.Fatalf("%d: %v", i, err)
		}
	}
	if err := take(table, hostile, "invented0", 2, now); err != nil {
		t.Error("one that is there:", err)
	}
	// A table full of such shares has room for whoever brings less.
	for site := 2; ; site++ {
		if n, _, _ := table.Size(); n == nodes {
			break
		}
		for i := range fromSite {
			if err := take(table, peers.Vouched(fmt.Sprint("192.0.2.", site)), fmt.Sprint(site, ".", i), 1, now.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := take(table, hostile, "one more", 1, now); !errors.Is(err, peers.ErrFull) {
		t.Error(err)
	}
	if err := take(table, peers.Connected("new"), "new", 1, now); err != nil {
		t.Error(err)
	}
	for i := range fromHubs {
		if err := take(table, peers.Trusted("hub"), fmt.Sprint("trusted", i), 1, now); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := take(table, peers.Trusted("hub"), "one more", 1, now); !errors.Is(err, peers.ErrFull) {
		t.Error(err)
	}
	for i := range fromHubs / 2 { // what the others have displaces itself, and not what the hub has brought
		_ = take(table, peers.Vouched(fmt.Sprint("198.51.100.", i)), fmt.Sprint("late", i), 1, now)
	}
	for i := range fromHubs {
		if !table.Has(fmt.Sprint("trusted", i)) {
			t.Fatal(i)
		}
	}
	if !table.Has("new") {
		t.Error("a node that is connected had to give way")
	}
}

// TestFloodDisplacesItself: the youngest nodes are dropped, not those that were known before.
func TestFloodDisplacesItself(t *testing.T) {
	table, now := peers.NewTable(nodes), time.Unix(1_000_000, 0)
	for i := range nodes {
		if err := take(table, peers.Trusted("hub"), fmt.Sprint(i), 1, now.Add(time.Duration(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		if err := take(table, peers.Connected(fmt.Sprint("new", i)), fmt.Sprint("new", i), 1, now); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes {
		if table.Has(fmt.Sprint(i)) != (i < nodes-10) {
			t.Fatal(i)
		}
	}
}

// TestTableSharesHold in any order of records from any source.
func TestTableSharesHold(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	table, now := peers.NewTable(nodes), time.Unix(1_000_000, 0)
	for step := range 8_000 {
		now = now.Add(time.Duration(r.IntN(int(10 * time.Millisecond))))
		id := fmt.Sprint("node", r.IntN(3*nodes))
		from := []peers.Source{peers.Connected(id), peers.Trusted(fmt.Sprint("hub", r.IntN(2))), peers.Vouched(fmt.Sprint("site", r.IntN(12)))}[r.IntN(3)]
		_, full, _ := table.Size()
		was := table.Has(id)
		err := take(table, from, id, step+1, now)
		if n, size, _ := table.Size(); n > nodes || size != 10*n || err == nil && !table.Has(id) || err != nil && size != full || was && !table.Has(id) {
			t.Fatalf("step %d: %d nodes, %d bytes, %v", step, n, size, err)
		}
		if step%1000 == 0 {
			table.Expire(now)
			sources, counted := table.Sources()
			for s, n := range sources {
				if n != counted[s] || len(sources) != len(counted) || s.IsVouched() && n > fromSite {
					t.Fatalf("step %d: %v has %d, counted as %d", step, s, n, counted[s])
				}
			}
		}
	}
}

// serveTable has a forger answer with records of nodes that there are not, when it is asked for its table.
func (f *forger) serveTable(t *testing.T, n int) {
	t.Helper()
	var table []byte
	for i := range n {
		record := peers.SealAt(newKey(t), time.Now(), time.Minute, []string{"/ip4/127.0.0.1/tcp/1"}, peers.Offer{Name: fmt.Sprint("invented", i)})
		table = binary.BigEndian.AppendUint32(table, uint32(len(record)))
		table = binary.BigEndian.AppendUint32(table, uint32(time.Minute.Milliseconds()))
		table = append(table, record...)
	}
	f.host.SetStreamHandler(peers.ProtocolTable, func(st network.Stream) {
		_, _ = st.Write(table)
		_ = st.Close()
	})
}

// TestInventedNodes: a neighbour that tells of nodes by the thousand keeps no real one out, and fills neither the log nor libp2p's memory.
func TestInventedNodes(t *testing.T) {
	began := time.Now() // before there is anything to log
	victim, log := start(t, peers.Config{})
	f := newForger(t, victim)
	f.serveTable(t, invented)
	conntest.Eventually(t, "its table is read", func() bool { return victim.Fetch(f.host.ID()) == nil })
	if s := victim.Status(); len(s.Offers) != believed || s.Gossip.Full < invented-believed {
		t.Errorf("%d of %d are in the table, %+v", len(s.Offers), invented, s.Gossip)
	}
	logged := log.String()
	most := peers.LinesPerSecond * (int(time.Since(began)/time.Second) + 1) // a second begins with its first line
	for _, message := range []string{"a node offers services", "services of a node are not taken"} {
		if lines := strings.Count(logged, message); lines == 0 || lines > most {
			t.Errorf("%d lines %q, want at most %d", lines, message, most)
		}
	}
	if n := len(victim.Host().Peerstore().PeersWithAddrs()); n > 10 {
		t.Errorf("libp2p remembers the addresses of %d peers", n)
	}
	another, _ := start(t, peers.Config{Bootstrap: victim.Addrs(), Services: []peers.Service{echo(t)}})
	knows(t, victim, "echo", another)
}

// TestStalledTables: a neighbour that does not tell its table is waited for once, and others are asked meanwhile.
func TestStalledTables(t *testing.T) {
	victim, _ := start(t, peers.Config{})
	asked := make(chan string, 100)
	stall := func(name string) *forger {
		f := newForger(t, victim)
		f.host.SetStreamHandler(peers.ProtocolTable, func(st network.Stream) {
			asked <- name
			<-t.Context().Done()
			_ = st.Reset()
		})
		return f
	}
	one, two := stall("one"), stall("two")
	for range 10 {
		victim.Ask(one.host.ID())
	}
	if got := <-asked; got != "one" {
		t.Fatal(got)
	}
	victim.Ask(two.host.ID())
	if got := <-asked; got != "two" {
		t.Errorf("%s is asked once more while it has not answered", got)
	}
}

// TestClockSetBack: a node that was restarted, and whose clock is behind what it had said before, is known at once.
func TestClockSetBack(t *testing.T) {
	hub, _ := start(t, peers.Config{})
	f := newForger(t, hub)
	key := newKey(t)
	f.say(t, peers.Seal(key, time.Now().Add(peers.MaxSkew/2), time.Minute, peers.Offer{Name: "before"}))
	conntest.Eventually(t, "the hub knows it", func() bool { return len(offered(hub, "before")) == 1 })
	again, _ := start(t, peers.Config{Key: key, Bootstrap: hub.Addrs(), Services: []peers.Service{echo(t)}})
	knows(t, hub, "echo", again)
	knows(t, hub, "before")
	if err := again.Drain(soon(t)); err != nil {
		t.Error(err)
	}
	knows(t, hub, "echo")
}
