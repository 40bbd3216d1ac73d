package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// play runs a script: ">PBES" are messages of the client, "<12CZI" of the server (Z with its
// status after it). It returns the state.
func play(t testing.TB, script string) *pgproxy.State {
	t.Helper()
	s := pgproxy.NewState()
	for _, part := range strings.Fields(script) {
		for i := 1; i < len(part); i++ {
			if part[0] == '>' {
				s.Client(part[i])
				continue
			}
			typ, status := part[i], pgwire.TxStatus(0)
			if typ == 'Z' {
				i++
				status = pgwire.TxStatus(part[i])
			}
			if err := s.Server(typ, status); err != nil {
				t.Fatalf("%s: %v", script, err)
			}
		}
	}
	if problem := s.Check(); problem != "" {
		t.Fatalf("%s: %s", script, problem)
	}
	return s
}

func TestState(t *testing.T) {
	for _, c := range []struct {
		what, script string
		free, due    bool
	}{
		{"nothing sent", "", true, false},
		{"query", ">Q", false, true},
		{"query answered", ">Q <TDDCZI", true, false},
		{"query fails", ">Q <EZI", true, false},
		{"two queries, one answered", ">QQ <CZI", false, true},
		{"in a transaction", ">Q <CZT", false, false},
		{"in a failed transaction", ">Q <CZT >Q <EZE", false, false},
		{"transaction over", ">Q <CZT >Q <CZI", true, false},
		{"pipeline without Sync", ">PBE <12C", false, false},
		{"pipeline", ">PBDES", false, true},
		{"pipeline answered", ">PBDES <12nCZI", true, false},
		{"pipeline fails", ">PBDESPBES <1EZI", false, true},
		{"pipeline fails, all answered", ">PBDESPBES <1EZI12CZI", true, false},
		{"error before Sync was sent", ">PBE <E", false, false},
		{"messages after an error are skipped", ">PBE <E >PBEQ", false, false},
		{"Sync ends the skipping", ">PBE <E >PBES <ZI", true, false},
		{"execute with a limit and Flush: PgDog#759", ">PBEH <12Ds", false, false},
		{"the rest of that portal", ">PBEH <12Ds >ES <DCZI", true, false},
		{"error at Sync", ">PBES <12CEZI", true, false},
		{"copy in", ">Q <G", false, false},
		{"copy in done", ">Q <G >ddc", false, true},
		{"copy in answered", ">Q <G >ddc <CZI", true, false},
		{"copy in fails early", ">Q <GEZI", true, false},
		{"copy in by the extended protocol, Sync ignored", ">PBES <12G", false, false},
		{"copy in by the extended protocol", ">PBES <12G >ddcS <CZI", true, false},
		{"copy in without waiting", ">PBEdcS <12GCZI", true, false},
		{"copy in by the extended protocol, in one write", ">PBESdcS <12GCZI", true, false},
		{"copy in by the extended protocol, no Sync behind it", ">PBESdcP <12GC", false, false},
		{"copy in fails, its Sync may be answered", ">PBESdcS <12GEZI", false, false},
		{"copy in fails, its Sync is answered", ">PBESdcS <12GEZIZI", true, false},
		{"copy in fails, its Sync is answered, and a query behind it is not", ">PBESdcSQ <12GEZIZI", false, true},
		{"copy in fails, its Sync and a query behind it are answered", ">PBESdcSQ <12GEZIZITDCZI", true, false},
		{"copy in fails, its Sync is not answered, a query behind it is", ">PBESdcSQ <12GEZITDCZI", true, false},
		{"copy in fails, pipelines behind it are answered", ">PBESdcSPBESS <12GEZIZI12CZIZI", true, false},
		{"copy in by Query fails, Syncs in its data may be answered", ">Q <G >SSc <EZIZI", false, false},
		{"copy in by Query fails, Syncs in its data are answered", ">Q <G >SSc <EZIZIZI", true, false},
		{"copy in by Query in one write, with a Sync in its data", ">QSdc <GCZI", true, false},
		{"copy out", ">Q <Hddc", false, true},
		{"copy out answered", ">Q <HddcCZI", true, false},
		{"function call", ">F <VZI", true, false},
		{"notice and notification", ">Q <NAS", false, true},
	} {
		s := play(t, c.script)
		if s.Free() != c.free || s.Due() != c.due {
			t.Errorf("%s (%s): free %v, due %v", c.what, c.script, s.Free(), s.Due())
		}
	}
}

// FuzzState plays clients' messages to a simple model of a server, in every interleaving, and
// checks that the connection is never free while the server owes an answer or has a transaction
// open, and is free once everything is answered, or lost. Digits begin a COPY: see model.
func FuzzState(f *testing.F) {
	f.Add([]byte("Q.PBES...."), false)
	f.Add([]byte("PB.ES.PBES..Q..."), true)
	f.Add([]byte("PPS.QQ...F."), true)
	f.Add([]byte("PB5SdcSQ..S.P."), false)
	f.Add([]byte("1SScQ.0ddSc.2dS."), false)
	f.Add([]byte("PB4SdHcS..PB6S.d.c.S"), true)
	f.Fuzz(func(t *testing.T, script []byte, fails bool) {
		s, srv := pgproxy.NewState(), &model{fails: fails}
		send := func(c byte) {
			s.Client(typeOf(c))
			srv.queue = append(srv.queue, c)
		}
		for _, c := range script {
			if strings.IndexByte("QFSPBDECHdcf01234567", c) >= 0 {
				send(c)
			} else {
				srv.answer(t, s)
			}
			if s.Free() && (srv.lost || srv.owes() || srv.open || srv.copying != 0) {
				t.Fatalf("%q: free while the server is busy", script)
			}
		}
		send('f')
		send('S')
		for len(srv.queue) > 0 {
			srv.answer(t, s)
		}
		if s.Silent() {
			s.EndDoubt()
		}
		if problem := s.Check(); problem != "" || s.Free() == (srv.lost || srv.over) {
			t.Fatalf("%q: free %v at the end, %s", script, s.Free(), problem)
		}
	})
}

// typeOf returns the type of a message in a script for a model.
func typeOf(c byte) byte {
	switch {
	case c >= '0' && c <= '3':
		return pgwire.TypeQuery
	case c >= '4' && c <= '7':
		return pgwire.TypeExecute
	}
	return c
}

// model answers messages as a server does, one at a time. With fails, every third fails. The digits are COPY from the client by Query,
// and, 4 higher, by Execute: 0 works, 1 fails before it reads data, 2 at the first data, 3 at the end.
type model struct {
	queue    []byte
	fails    bool
	n        int
	skipping bool
	open     bool // a pipeline is
	copying  byte // the COPY under way; 0 = none
	over     bool // it has ended the connection
	lost     bool // nobody knows what it answers
}

// owes reports whether an answer is to come.
func (m *model) owes() bool {
	later := *m
	for len(later.queue) > 0 {
		if later.next() != "" {
			return true
		}
	}
	return false
}

func (m *model) answer(t *testing.T, s *pgproxy.State) {
	t.Helper()
	if len(m.queue) == 0 {
		return
	}
	for _, r := range []byte(m.next()) {
		if m.over || m.lost {
			return
		}
		if err := s.Server(r, pgwire.TxIdle); pgproxy.IsUnclear(err) {
			m.lost = true
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// next handles a message and returns the types of the answer.
func (m *model) next() (reply string) {
	c := m.queue[0]
	m.queue = m.queue[1:]
	switch {
	case m.over:
		return ""
	case m.copying != 0:
		return m.copied(c)
	case strings.IndexByte("dcfH", c) >= 0, m.skipping && c != 'S':
		return ""
	}
	typ := typeOf(c)
	reply = map[byte]string{'Q': "TDCZ", 'F': "VZ", 'S': "Z", 'P': "1", 'B': "2", 'D': "tn", 'E': "DC", 'C': "3"}[typ]
	m.open = typ != 'S' && typ != 'Q' && typ != 'F'
	if c == 'S' {
		m.skipping = false
	}
	if m.n++; m.fails && m.n%3 == 0 && c != 'S' {
		return m.failed("")
	}
	if c >= '0' && c <= '7' {
		if (c-'0')%4 == 1 {
			return m.failed("G")
		}
		m.copying, reply = c, "G"
	}
	return reply
}

// failed is the answer to a message that fails, after something else.
func (m *model) failed(before string) string {
	if m.skipping = m.open; m.open {
		return before + "E"
	}
	return before + "EZ"
}

// copied handles a message while a COPY is under way.
func (m *model) copied(c byte) string {
	how := (m.copying - '0') % 4
	switch {
	case c == 'S' || c == 'H' || c == 'd' && how != 2:
		return ""
	case c == 'd' || c == 'f' || c == 'c' && how == 3:
		m.copying = 0
		return m.failed("")
	case c == 'c' && m.open:
		m.copying = 0
		return "C"
	case c == 'c':
		m.copying = 0
		return "CZ"
	}
	m.over = true // FATAL
	return "E"
}

func TestDeallocated(t *testing.T) {
	for sql, want := range map[string]string{
		"deallocate a": "a", "DEALLOCATE PREPARE Ab;": "ab", `deallocate "Ab"`: "Ab", " deallocate  pdo_stmt_00000001 ; ": "pdo_stmt_00000001",
		"deallocate all": "", "deallocate": "", "select 1": "", "deallocate a; select 1": "", `deallocate "a""b"`: `a"b`, "deallocate a--": "a",
		";/* a /* b */ */ deallocate/**/prepare -- c\n a1 /*x*/;;": "a1", "deallocate prepare": "prepare", `deallocate "all"`: "all",
		"deallocate ; a": "", `deallocate "a`: "", `deallocate U&"a"`: "", "deallocate a b": "", "/* deallocate a": "", `deallocate ""`: "",
	} {
		if got, ok := pgproxy.Deallocated(sql); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v", sql, got, ok)
		}
	}
}

func TestParseOptions(t *testing.T) {
	got, err := pgproxy.ParseOptions(`-c a=1  -cb=two\ words --c-d=3`)
	if err != nil || len(got) != 3 || got[1].Value != "two words" || got[2].Name != "c_d" {
		t.Error(got, err)
	}
	for _, bad := range []string{"-c", "-x", "a=b", "-c a", "--=1"} {
		if _, err := pgproxy.ParseOptions(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}
