package pgproxy_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// stepNames has a client send a request about one of four custom settings, most often a read, or executes a byte of a script.
func (w *modelWorld) stepNames(r *rand.Rand) {
	c, name := w.clients[r.IntN(len(w.clients))], "app."+string(rune('a'+r.IntN(4)))
	text := "select current_setting('" + name + "', true)"
	switch r.IntN(8) {
	case 0:
		text = "set local " + name + " = 1"
	case 1, 2:
		text = w.texts[r.IntN(len(w.texts))]
	}
	statement := []string{"", "a"}[r.IntN(2)]
	switch r.IntN(6) {
	case 0:
		w.step(byte(r.Uint32()), byte(r.Uint32()))
	case 1:
		w.send(c, &pgwire.Parse{Name: statement, Query: text})
		w.send(c, &pgwire.Sync{})
	case 2:
		w.send(c, &pgwire.Parse{Name: statement, Query: text})
		fallthrough
	case 3:
		w.send(c, &pgwire.Bind{Statement: statement})
		w.send(c, &pgwire.Execute{})
		w.send(c, &pgwire.Sync{})
	default:
		w.send(c, query(text))
	}
	if r.IntN(3) > 0 {
		w.drain()
	}
}

// watchNames fails the test if a server gets a Query that reads a name which only other clients have set there, as the first one of a lease
// or behind nothing but BEGIN. It returns the number of replaced server connections.
func (w *modelWorld) watchNames() (renewed *int) {
	renewed = new(int)
	made := map[string][]*pgproxy.Machine{} // the clients that have sent a text with SET
	for srv, s := range w.servers {
		known := map[string]bool{} // the texts with SET that the server has run
		s.runs = func(text string) {
			if strings.HasPrefix(text, "set local") {
				known[text] = true
			}
		}
		in, name := srv.In, srv.Name
		srv.In = func(b []byte) {
			in(b)
			text := textSent(b)
			if strings.HasPrefix(text, "set local") {
				made[text] = append(made[text], srv.Owner)
			}
			setting, reads := strings.CutPrefix(text, "select current_setting('")
			if !reads {
				return
			}
			set := "set local " + setting[:len("app.a")] + " = 1"
			if b[0] == pgwire.TypeQuery && known[set] && !slices.Contains(made[set], srv.Owner) && w.leadsLease(name) {
				w.fail("server %s has the name of another client in %q", name, text)
			}
		}
		srv.Renewed = func(begin string) {
			*renewed++
			clear(known)
			runs := s.runs
			*s = *newBackend()
			s.runs = runs
			if begin != "" {
				s.tx = pgwire.TxActive
			}
		}
	}
	return renewed
}

// textSent returns the text of a Query or Parse.
func textSent(b []byte) string {
	switch body := b[5:]; b[0] {
	case pgwire.TypeQuery:
		text, _, _ := bytes.Cut(body, []byte{0})
		return string(text)
	case pgwire.TypeParse:
		_, rest, _ := bytes.Cut(body, []byte{0})
		text, _, _ := bytes.Cut(rest, []byte{0})
		return string(text)
	}
	return ""
}

// leadsLease reports whether the last message that a server has got is the first one of its lease, but for a BEGIN by itself. It is not if the
// gateway itself has answered a Close in this lease.
func (w *modelWorld) leadsLease(server string) bool {
	var got []string
	leased := ""
	for _, line := range slices.Backward(w.history) {
		client, what, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case leased != "":
			if strings.HasPrefix(line, leased+" sends ") {
				return !strings.HasPrefix(line, leased+" sends Close") &&
					(len(got) == 1 || len(got) == 2 && strings.HasPrefix(got[1], `Query "begin"`) && strings.HasPrefix(got[0], "Query"))
			}
		case what == "lease "+server || what == "renew "+server:
			leased = client
		case strings.Contains(line, " sends Close"):
			return false // perhaps of this client
		default:
			if sent, ok := strings.CutPrefix(line, "    server "+server+" gets "); ok {
				got = append(got, sent)
			}
		}
	}
	return false
}
