//go:build !race

package pgproxy_test // the machine has no concurrency, and its models take several times as long with the race detector

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMachineModelOfValues plays random scripts with INSERT and lastval of three clients on two server connections. A client that asks gets its
// newest value or none: never one of another client, nor an older one of its own on another server connection. It gets its value if no
// other client has had the server connection since.
func TestMachineModelOfValues(t *testing.T) {
	told := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newModelWorld(t, 2, 1+int(seed)%3)
		w.texts = []string{"select 1", "begin", "rollback", "fail", "deallocate all", "insert 1", "insert 1", "select lastval()", "select lastval()", "select lastval()"}
		n := w.watchValues()
		for range 60 {
			if r.IntN(2) == 0 {
				w.step(byte(r.Uint32()), byte(r.Uint32()))
				continue
			}
			w.send(w.clients[r.IntN(len(w.clients))], query(w.texts[r.IntN(len(w.texts))]))
			w.drain()
		}
		w.end()
		told += *n
	}
	if told == 0 {
		t.Error("no client was told a value")
	}
	t.Logf("clients were told %d values of earlier transactions", told)
}

// watchValues fails the test if a server tells a client a value that is not its newest. It counts the values that are told.
func (w *modelWorld) watchValues() (told *int) {
	told = new(int)
	w.pool.Asked()                        // the very first question has a gap, see docs/session-state.md
	newest := map[*modelClient]*backend{} // where the client has drawn last
	for srv, s := range w.servers {
		var of *modelClient // whose value the server has
		s.runs = func(text string) {
			i := slices.IndexFunc(w.clients, func(c *modelClient) bool { return c.machine == srv.Owner })
			c := w.clients[i]
			switch text {
			case "DISCARD SEQUENCES":
				if of == c && newest[c] == s {
					w.fail("%s loses its value", c.name)
				}
				of = nil
			case "insert 1":
				of, newest[c] = c, s
			case "select lastval()":
				switch {
				case of == nil: // an error, really
				case of != c || newest[c] != s:
					w.fail("server %s tells %s a value of %s, which is not the newest", srv.Name, c.name, of.name)
				default:
					*told++
				}
			}
		}
	}
	return told
}
