package pgproxy_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// startListening has a fixture for channels, and a pool of some server connections.
func startListening(t *testing.T, db *pgtest.Cluster, size int, change func(*pgproxy.Config, *pgproxy.PostgresConfig)) *gateway {
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize = size
		if change != nil {
			change(c, pc)
		}
	})
	db.Exec(t, pinFixture)
	return g
}

// awaitParked returns once a client listens by the listening connection, and has no server connection of its own.
func (g *gateway) awaitParked(t *testing.T, application string) {
	t.Helper()
	conntest.Eventually(t, application+" listens and holds nothing", func() bool {
		return slices.ContainsFunc(g.Sessions(), func(s listener.Info) bool { return s.Application == application && s.Channels > 0 && s.Held.IsZero() })
	})
}

// awaitListeners returns once n clients listen by the listening connection.
func (g *gateway) awaitListeners(t *testing.T, n int) {
	t.Helper()
	conntest.Eventually(t, fmt.Sprintf("%d clients listen", n), func() bool { return g.Stats().Listening == n })
}

// heardUpTo returns the payloads of the notifications of a client up to one, and "own " before those that it has sent itself.
func heardUpTo(t *testing.T, w *wire, last string) (payloads []string) {
	t.Helper()
	for {
		typ, body := w.read()
		if typ != pgwire.TypeNotificationResponse {
			t.Fatalf("%c %q between notifications %q", typ, body, payloads)
		}
		p := payloadOf(t, w, body)
		if payloads = append(payloads, p); p == last {
			return payloads
		}
	}
}

// payloadOf returns the payload of a notification, and "own " before that of a client's own.
func payloadOf(t *testing.T, w *wire, body string) string {
	t.Helper()
	var m pgwire.NotificationResponse
	if err := m.Decode([]byte(body)); err != nil {
		t.Fatal(err)
	}
	if m.ProcessID == w.key.ProcessID {
		return "own " + m.Payload
	}
	return m.Payload
}

// What a client listens to follows its transactions, whatever says LISTEN or UNLISTEN.
func TestListenInTransactions(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 2, nil)
	direct := db.Connect(t)
	for i, c := range []struct {
		do   []string
		want string // of the channels a, b and c
	}{
		{[]string{"listen a"}, "a"},
		{[]string{"listen a; listen b"}, "a b"},
		{[]string{"begin", "listen a", "commit"}, "a"},
		{[]string{"begin", "listen a", "rollback"}, ""},
		{[]string{"listen a", "begin", "listen b", "rollback"}, "a"},
		{[]string{"listen a", "begin", "unlisten a", "rollback"}, "a"},
		{[]string{"listen a", "begin", "unlisten a", "listen b", "commit"}, "b"},
		{[]string{"listen a", "begin", "unlisten a", "savepoint s", "listen b", "rollback to s", "commit"}, ""},
		{[]string{"listen a", "begin", "savepoint s", "unlisten *", "rollback to s", "listen c", "commit"}, "a c"},
		{[]string{"listen a", "listen b", "unlisten a"}, "b"},
		{[]string{"listen a", "listen b", "unlisten *"}, ""},
		{[]string{"listen a", "listen b", "discard all"}, ""},
		{[]string{"listen a", "select 1", "begin", "select 1", "commit", "listen b"}, "a b"},
		{[]string{"select pin.run('listen a')"}, "a"},
		{[]string{"listen a", "do $$ begin execute 'unlisten a'; execute 'listen b'; end $$"}, "b"},
		{[]string{"listen a", "create temp table t (n int)", "listen b", "drop table t"}, "a b"},
		{[]string{"listen a", "select 1/0", "listen c"}, "a c"},
		{[]string{"begin", "listen a", "select 1/0", "commit"}, ""},
		{[]string{"listen a", "set client_encoding = latin1", "set client_encoding = utf8"}, "a"},
		{[]string{`listen "end"; listen "a"`}, "a"},
	} {
		w := g.dial(t)
		for _, sql := range c.do {
			w.ask(query(sql))
		}
		w.ask(query(`listen "end"`))
		simple(t, direct, fmt.Sprintf(`notify a, 'a'; notify b, 'b'; notify c, 'c'; notify "end", 'end%d'`, i))
		got := heardUpTo(t, w, fmt.Sprintf("end%d", i))
		if heard := strings.Join(got[:len(got)-1], " "); heard != c.want {
			t.Errorf("%q: heard %q, want %q", c.do, heard, c.want)
		}
		_, channels := w.ask(query(`unlisten "end"; ` + channelsSeen))
		for _, name := range strings.Fields(c.want) {
			if !has(channels, name) {
				t.Errorf("%q: pg_listening_channels() has no %s: %q", c.do, name, channels)
			}
		}
		if has(channels, "headpond") {
			t.Errorf("%q: the client sees the gateway's own channel: %q", c.do, channels)
		}
		w.send(&pgwire.Terminate{})
		w.toTheEnd()
	}
	g.awaitListeners(t, 0)
	if n := g.Stats().Pinned; n != 0 {
		t.Errorf("%d are pinned", n)
	}
}

// A client's own notifications come before the end of the answer, as on a direct connection, with the process ID that the client was told.
// Others' have another one.
func TestListenToItself(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 1, nil)
	direct, w := db.Connect(t), g.dial(t)
	for _, sql := range []string{"begin; listen own; notify own, 'same transaction'; commit", "notify own, 'simple'", "select pg_notify('own', 'function')", "begin; notify own, 'x'; commit"} {
		types, bodies := w.ask(query(sql))
		if n := strings.Count(types, "A"); n != 1 || !strings.HasSuffix(types, "AZ") {
			t.Errorf("%s: %s %q", sql, types, bodies)
		}
		if !has(bodies, string(binary.BigEndian.AppendUint32(nil, w.key.ProcessID))) {
			t.Errorf("%s: not from the client itself: %q", sql, bodies)
		}
	}
	simple(t, direct, "notify own, 'of another'")
	if _, body := w.read(); payloadOf(t, w, body) != "of another" {
		t.Errorf("%q", body)
	}
}

// Notifications wait for the end of a transaction, and do not come in the middle of an answer.
func TestListenWaitsForTransaction(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 2, nil)
	direct, w := db.Connect(t), g.dial(t)
	w.ask(query("listen patient"))
	for i := range 20 {
		w.ask(query("begin"))
		simple(t, direct, fmt.Sprintf("notify patient, '%d'", i))
		if types, bodies := w.ask(query("select 1")); types != "TDCZ" {
			t.Fatalf("in a transaction: %s %q", types, bodies)
		}
		w.send(query("commit"))
		types, bodies := w.until(pgwire.TypeReadyForQuery)
		if types != "CAZ" { // it is told with the end, or behind it
			if typ, body := w.read(); types != "CZ" || typ != pgwire.TypeNotificationResponse {
				t.Fatalf("after it: %s %q, %c %q", types, bodies, typ, body)
			}
		}
	}
}

// busyListener is a client that works, and listens meanwhile.
type busyListener struct {
	*wire
	t     *testing.T
	heard []string // the payloads of others' notifications that begin with n
	own   []string
}

func (l *busyListener) take(typ byte, body string) {
	if typ != pgwire.TypeNotificationResponse {
		return
	}
	if p := payloadOf(l.t, l.wire, body); strings.HasPrefix(p, "own ") {
		l.own = append(l.own, p)
	} else if strings.HasPrefix(p, "n") {
		l.heard = append(l.heard, p)
	}
}

func (l *busyListener) asks(sql string) {
	for l.send(query(sql)); ; {
		typ, body := l.read()
		if l.take(typ, body); typ == pgwire.TypeReadyForQuery {
			return
		}
	}
}

// works until it has heard n notifications, and sends some itself.
func (l *busyListener) works(n, first int) {
	for own := 0; len(l.heard) < n; {
		switch (len(l.heard) + first) % 4 {
		case 0:
			l.asks("select 1")
		case 1:
			l.asks(fmt.Sprintf("notify news, '%d'", own))
			if own++; len(l.own) != own {
				l.t.Errorf("%d of its own %d notifications by the end of the answer", len(l.own), own)
				return
			}
		case 2:
			l.asks("begin")
			l.asks("commit")
		}
		if len(l.heard) < n {
			l.take(l.read())
		}
	}
	for i, p := range l.heard {
		if p != fmt.Sprintf("n%d", i) {
			l.t.Errorf("notification %d is %q", i, p)
			return
		}
	}
	for i, p := range l.own {
		if p != fmt.Sprintf("own %d", i) {
			l.t.Errorf("its own notification %d is %q", i, p)
			return
		}
	}
}

// Clients that work, sleep and listen get each notification once and in order, also their own.
func TestListenInOrder(t *testing.T) {
	const clients, notifications = 8, 150
	db := pgtest.Shared(t)
	g := startListening(t, db, 3, nil)
	var all sync.WaitGroup
	for i := range clients {
		l := &busyListener{wire: g.dial(t), t: t}
		l.asks("listen news")
		all.Go(func() { l.works(notifications, i) })
	}
	direct := db.Connect(t)
	for n := range notifications {
		simple(t, direct, fmt.Sprintf("notify news, 'n%d'", n))
	}
	all.Wait()
}

// Many clients listen, with few server connections, none of which they keep. Others can use all of these.
func TestManyListeners(t *testing.T) {
	const clients, size = 200, 2
	db := pgtest.Shared(t)
	g := startListening(t, db, size, nil)
	var listeners []*wire
	for i := range clients {
		w := g.dial(t)
		if types, bodies := w.ask(query(fmt.Sprintf("listen everyone; listen only%d", i))); types != "CCZ" {
			t.Fatalf("%s %q", types, bodies)
		}
		listeners = append(listeners, w)
	}
	g.awaitListeners(t, clients)
	if st := g.Stats(); st.Pinned != 0 {
		t.Errorf("%d are pinned", st.Pinned)
	}
	var others []*pgx.Conn
	for range size {
		c := g.connect(t, "")
		simple(t, c, "begin")
		others = append(others, c)
	}
	for _, c := range others {
		simple(t, c, "notify everyone, 'hello'")
		simple(t, c, "commit")
	}
	simple(t, others[0], "notify everyone, 'bye'")
	for i, w := range listeners {
		if got := heardUpTo(t, w, "bye"); len(got) != size+1 {
			t.Errorf("client %d heard %q", i, got)
		}
	}
	simple(t, others[0], "notify only7, 'secret'")
	if got := heardUpTo(t, listeners[7], "secret"); len(got) != 1 {
		t.Errorf("heard %q", got)
	}
	listening := one[int](t, db.Connect(t), "select count(*) from pg_stat_activity where backend_type = 'client backend' and query like any (array['LISTEN%', 'UNLISTEN%']) and state = 'idle' and query not like '%NOTIFY%'")
	if listening > size+1 {
		t.Errorf("%d server connections have listened last", listening)
	}
	for _, w := range listeners {
		w.send(&pgwire.Terminate{})
		w.toTheEnd()
	}
	g.awaitListeners(t, 0)
}

// When the listening connection breaks, the clients that listen are told with the server's words: notifications are lost to them, as to clients
// whose direct connection has broken. Others are not concerned, and who connects again listens again.
func TestListeningConnectionLost(t *testing.T) {
	db := pgtest.Start(t)
	g := startListening(t, db, 2, nil)
	direct, other := db.Connect(t), g.dial(t)
	for _, idle := range []bool{true, false} {
		w := g.dial(t, pgwire.Param{Name: "application_name", Value: "listener"})
		w.ask(query("listen news"))
		g.awaitParked(t, "listener")
		if !idle {
			w.ask(query("begin")) // it has a server connection that listens: it is not concerned
		}
		pid, _ := g.backend.Listening()
		do(t, direct, "select pg_terminate_backend($1)", int32(pid))
		conntest.Eventually(t, "the listening connection is lost", func() bool { now, _ := g.backend.Listening(); return now != pid })
		if idle {
			if said := w.toTheEnd(); !has(said, "57P01") || !has(said, "terminating connection due to administrator command") {
				t.Errorf("told %q", said)
			}
		} else {
			w.send(&pgwire.Terminate{})
			w.toTheEnd()
		}
		g.awaitListeners(t, 0)
	}
	if types, _ := other.ask(query("select 1")); types != "TDCZ" {
		t.Errorf("another client: %s", types)
	}
	w := g.dial(t)
	w.ask(query("listen news"))
	simple(t, direct, "notify news, 'again'")
	heardUpTo(t, w, "again")
	db.Restart(t)
	if said := w.toTheEnd(); !has(said, "57P01") {
		t.Errorf("after a restart, told %q", said)
	}
	w = g.dial(t)
	w.ask(query("select 1")) // its server connection may be one from before
	conntest.Eventually(t, "the client listens", func() bool {
		types, _ := w.ask(query("listen news"))
		return types == "CZ"
	})
	simple(t, db.Connect(t), "notify news, 'after the restart'")
	heardUpTo(t, w, "after the restart")
}

// A drain ends clients that listen like other idle ones. So does an operator.
func TestListenersEnd(t *testing.T) {
	g := startListening(t, pgtest.Shared(t), 2, nil)
	killed, w := g.dial(t, pgwire.Param{Name: "application_name", Value: "killed"}), g.dial(t, pgwire.Param{Name: "application_name", Value: "drained"})
	for _, c := range []*wire{killed, w} {
		c.ask(query("listen a; listen b"))
	}
	g.awaitParked(t, "killed")
	g.awaitParked(t, "drained")
	s := g.session(t, "killed", listener.StateIdle)
	if s.Channels != 2 || s.Pinned != "" || !s.Held.IsZero() {
		t.Errorf("%+v", s)
	}
	g.kill(t, s)
	if said := killed.toTheEnd(); !has(said, "57P01") {
		t.Errorf("killed: told %q", said)
	}
	g.drainEnds(t, w)
	g.awaitListeners(t, 0)
}

// Where the listening connection cannot listen for a client, the client keeps a server connection to listen.
func TestListenPins(t *testing.T) {
	db := pgtest.Shared(t)
	var many []string
	for i := range 1001 {
		many = append(many, fmt.Sprintf("listen c%d", i))
	}
	many = []string{strings.Join(many, ";")}
	for name, c := range map[string]struct {
		change func(*pgproxy.Config, *pgproxy.PostgresConfig)
		sql    []string
	}{
		"several endpoints": {change: func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			pc.Endpoints = upstream.Endpoints(db.Addr(), strings.Replace(db.Addr(), "127.0.0.1", "localhost", 1))
		}},
		"another encoding":  {sql: []string{"set client_encoding = latin1"}},
		"too many channels": {sql: many},
	} {
		t.Run(name, func(t *testing.T) {
			g := startListening(t, db, 2, c.change)
			w := g.dial(t, pgwire.Param{Name: "application_name", Value: "keeper"})
			for _, sql := range append(slices.Clone(c.sql), "listen pinned") {
				w.ask(query(sql))
			}
			if s := g.session(t, "keeper", listener.StatePinned); s.Pinned != "LISTEN" || s.Channels != 0 {
				t.Errorf("%+v", s)
			}
			simple(t, db.Connect(t), "notify pinned, 'hello'")
			heardUpTo(t, w, "hello")
			if types, _ := w.ask(query("notify pinned, 'own'")); types != "CAZ" {
				t.Errorf("its own: %s", types)
			}
			w.ask(query("unlisten *"))
			g.session(t, "keeper", listener.StateIdle)
		})
	}
}

// A client that has been idle for long, and so has no stack, hears at once.
func TestListenWhileSuspended(t *testing.T) {
	g, suspended := startWatched(t, transaction)
	w := g.dial(t)
	w.ask(query("listen late"))
	g.awaitListeners(t, 1)
	direct := pgtest.Shared(t).Connect(t)
	for i := range 6 { // the first time, it may have been suspended before it listened
		<-suspended
		simple(t, direct, fmt.Sprintf("notify late, '%d'", i))
		heardUpTo(t, w, fmt.Sprint(i))
	}
	if types, _ := w.ask(query("select 1")); types != "TDCZ" {
		t.Error(types)
	}
}

// sliced is a connection that writes a part of what it is given, and calls a function before the rest.
type sliced struct {
	net.Conn
	at      int
	between func()
}

func (c *sliced) Write(b []byte) (int, error) {
	if at := c.at; at > 0 && at < len(b) {
		if n, err := c.Conn.Write(b[:at]); err != nil {
			return n, err
		}
		c.between()
		n, err := c.Conn.Write(b[at:])
		return at + n, err
	}
	return c.Conn.Write(b)
}

// A client that is in the middle of sending a message, or a record of TLS, hears before or behind the answer, and the message is not lost.
func TestListenWhileSending(t *testing.T) {
	withAndWithoutTLS(t, func(t *testing.T, secure *tls.Config, _ string) {
		db := pgtest.Shared(t)
		g := startListening(t, db, 1, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = secure })
		raw, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn := &sliced{Conn: raw}
		w := newWire(t, conn)
		if secure != nil {
			var answer [1]byte
			if _, err := raw.Write(bytesOf(&pgwire.SSLRequest{})); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(raw, answer[:]); err != nil || answer[0] != 'S' {
				t.Fatal(answer, err)
			}
			w = newWire(t, tls.Client(conn, &tls.Config{InsecureSkipVerify: true})) //nolint:gosec // a throw-away certificate
		}
		w.login()
		w.ask(query("listen partly"))
		direct := db.Connect(t)
		message := query("select 'whole'")
		for n := 1; n < len(bytesOf(message)); n++ {
			conn.at, conn.between = n, func() {
				simple(t, direct, fmt.Sprintf("notify partly, '%d'", n))
				if n < 5 || secure != nil { // not even the header of the message is there: the client is idle
					heardUpTo(t, w, fmt.Sprint(n))
				}
			}
			w.send(message)
			conn.at = 0
			types, bodies := w.until(pgwire.TypeReadyForQuery)
			if strings.ReplaceAll(types, "A", "") != "TDCZ" || !has(bodies, "whole") {
				t.Fatalf("after %d bytes: %s %q", n, types, bodies)
			}
			if n >= 5 && secure == nil && !has(types, "A") {
				heardUpTo(t, w, fmt.Sprint(n))
			}
		}
	})
}

// Drivers listen by the extended protocol, too, and in pipelines.
func TestListenInPipelines(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 2, nil)
	direct, w := db.Connect(t), g.dial(t)
	w.send(&pgwire.Parse{Name: "l", Query: "listen piped"}, &pgwire.Bind{Statement: "l"}, &pgwire.Execute{}, &pgwire.Sync{},
		&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}, query("select 2"))
	for range 3 {
		w.until(pgwire.TypeReadyForQuery)
	}
	simple(t, direct, "notify piped, 'hello'")
	heardUpTo(t, w, "hello")
	conn := g.connect(t, "")
	do(t, conn, "listen piped")
	results := conn.SendBatch(t.Context(), func() *pgx.Batch {
		b := new(pgx.Batch)
		for i := range 5 {
			b.Queue("select pg_notify('piped', $1)", fmt.Sprint(i))
		}
		return b
	}())
	if err := results.Close(); err != nil {
		t.Fatal(err)
	}
	var n *pgconn.Notification
	for i := range 5 {
		ctx, stop := context.WithTimeout(t.Context(), conntest.Patience)
		var err error
		if n, err = conn.WaitForNotification(ctx); err != nil || n.Payload != fmt.Sprint(i) || n.PID != conn.PgConn().PID() {
			t.Errorf("%+v, %v, want own %d", n, err, i)
		}
		stop()
	}
	heardUpTo(t, w, "4")
}
