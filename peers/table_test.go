package peers_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/peers"
)

// model is a table as one would write it without thinking of speed.
type model struct {
	now    map[string]modelEntry
	issued map[string]int64
}

type modelEntry struct {
	services []string
	expires  time.Time
}

// TestTableAgainstModel drives a table and the model with the same records, in any order.
func TestTableAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	table, m := peers.NewTable(peers.MaxEntries), model{map[string]modelEntry{}, map[string]int64{}}
	now := time.Unix(1_000_000, 0)
	for step := range 20_000 {
		now = now.Add(time.Duration(r.IntN(300)) * time.Millisecond)
		id := fmt.Sprint("node", r.IntN(20))
		issued, life := now.UnixNano()-int64(r.IntN(5))*int64(time.Second), time.Duration(1+r.IntN(10))*time.Second
		var services []string
		for range r.IntN(3) {
			services = append(services, fmt.Sprint("s", r.IntN(4)))
		}
		gone := table.Expire(now)
		for id, e := range m.now {
			if over := !e.expires.After(now); over != slices.Contains(gone, id) {
				t.Fatalf("step %d: %s expires: %v, want %v", step, id, !over, over)
			} else if over {
				delete(m.now, id)
			}
		}
		_, was := m.now[id]
		fresh, left, err := table.Put(id, issued, 100, life, now, services...)
		known := issued <= m.issued[id]
		if !known {
			m.issued[id] = issued
			if delete(m.now, id); len(services) > 0 {
				m.now[id] = modelEntry{services, now.Add(life)}
			}
		}
		if known != errors.Is(err, peers.ErrKnown) || !known && (err != nil || fresh != (!was && len(services) > 0) || left != (was && len(services) == 0)) {
			t.Fatalf("step %d: fresh %v, left %v, %v; the model knows it: %v, had the node: %v", step, fresh, left, err, known, was)
		}
		service := fmt.Sprint("s", r.IntN(4))
		var want []string
		for id, e := range m.now {
			if slices.Contains(e.services, service) {
				want = append(want, id)
			}
		}
		got := table.Offering(service, func(string) int { return 0 })
		slices.Sort(got)
		slices.Sort(want)
		if nodes, size, _ := table.Size(); !slices.Equal(got, want) || nodes != len(m.now) || size != 100*nodes {
			t.Fatalf("step %d: %v, want %v; %d nodes, %d bytes", step, got, want, nodes, size)
		}
	}
}

func TestTableBounds(t *testing.T) {
	table, now := peers.NewTable(peers.MaxEntries), time.Unix(1_000_000, 0)
	for i := range peers.MaxEntries {
		if _, _, err := table.Put(fmt.Sprint(i), 1, 10, time.Minute, now, "s"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := table.Put("more", 1, 10, time.Minute, now, "s"); !errors.Is(err, peers.ErrFull) {
		t.Error(err)
	}
	if _, _, err := table.Put("1", 2, 10, time.Minute, now, "s"); err != nil {
		t.Error("one that is there:", err)
	}
	if _, _, err := table.Put("1", 3, 1<<30, time.Minute, now, "s"); !errors.Is(err, peers.ErrFull) {
		t.Error(err)
	}
	if gone := table.Expire(now.Add(time.Minute)); len(gone) != peers.MaxEntries {
		t.Error(len(gone))
	}
	for i := range 2 * peers.MaxPast { // goodbyes of nodes that nobody knew
		if _, _, err := table.Put(fmt.Sprint("stranger", i), 1, 10, time.Minute, now); err != nil {
			t.Fatal(err)
		}
	}
	if nodes, size, past := table.Size(); nodes != 0 || size != 0 || past > peers.MaxPast {
		t.Error(nodes, size, past)
	}
	table.Expire(now.Add(time.Hour))
	if _, _, past := table.Size(); past != 0 {
		t.Error(past)
	}
}

// TestTableOrder: those with the most room come first, and those that are alike take turns.
func TestTableOrder(t *testing.T) {
	table, now := peers.NewTable(peers.MaxEntries), time.Unix(1_000_000, 0)
	for _, id := range []string{"a", "b", "c"} {
		if _, _, err := table.Put(id, 1, 10, time.Minute, now, "s"); err != nil {
			t.Fatal(err)
		}
	}
	first := map[string]int{}
	for range 600 {
		order := table.Offering("s", func(id string) int { return map[string]int{"c": 1}[id] })
		if order[2] != "c" {
			t.Fatal(order)
		}
		first[order[0]]++
	}
	if first["a"] < 200 || first["b"] < 200 {
		t.Error(first)
	}
}

// TestRecords: what is not exactly what a node has signed, now, is not believed.
func TestRecords(t *testing.T) {
	key, now := newKey(t), time.Now()
	good := peers.Seal(key, now, time.Second, peers.Offer{Name: "s", Groups: []string{"model=a"}, Load: 1, Capacity: 2})
	id, offers, err := peers.Unseal(good, now)
	if err != nil || id.String() != idOf(t, key) || len(offers) != 1 || offers[0].Groups[0] != "model=a" {
		t.Fatal(id, offers, err)
	}
	for i := range good { // any bit
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if other, _, err := peers.Unseal(bad, now); err == nil && other == id {
			t.Errorf("byte %d changed, and it is believed", i)
		}
	}
	long := peers.Offer{Name: "s", Groups: []string{strings.Repeat("g", 300)}}
	var many []peers.Offer
	for i := range 65 {
		many = append(many, peers.Offer{Name: fmt.Sprint("s", i)})
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"empty": {nil, peers.ErrForged}, "garbage": {[]byte("garbage"), peers.ErrForged}, "cut": {good[:len(good)-1], peers.ErrForged},
		"large":      {make([]byte, peers.MaxRecord+1), peers.ErrForged},
		"future":     {peers.Seal(key, now.Add(peers.MaxSkew+time.Minute), time.Second, offers...), peers.ErrFuture},
		"past":       {peers.Seal(key, now.Add(-peers.MaxSkew-time.Minute), time.Second, offers...), peers.ErrStale},
		"long life":  {peers.Seal(key, now, time.Hour, offers...), peers.ErrForged},
		"no life":    {peers.Seal(key, now, 0, offers...), peers.ErrForged},
		"group":      {peers.Seal(key, now, time.Second, long), peers.ErrForged},
		"many":       {peers.Seal(key, now, time.Second, many...), peers.ErrForged},
		"twice":      {peers.Seal(key, now, time.Second, offers[0], offers[0]), peers.ErrForged},
		"name":       {peers.Seal(key, now, time.Second, peers.Offer{Name: "a b"}), peers.ErrForged},
		"negative":   {peers.Seal(key, now, time.Second, peers.Offer{Name: "s", Load: -1}), peers.ErrForged},
		"not a node": {peers.Seal(ed25519.NewKeyFromSeed(make([]byte, 32)), now, time.Second, offers...), nil},
	} {
		if _, _, err := peers.Unseal(c.data, now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// FuzzUnseal: what nobody has signed is never believed.
func FuzzUnseal(f *testing.F) {
	key, now := newKey(f), time.Now()
	f.Add(peers.Seal(key, now, time.Second, peers.Offer{Name: "s"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		id, offers, err := peers.Unseal(data, now)
		if err == nil && id.String() == idOf(t, key) && !(len(offers) == 1 && offers[0].Name == "s") {
			t.Errorf("%v of %v", offers, id)
		}
	})
}
