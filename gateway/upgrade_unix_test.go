//go:build unix

package gateway_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// upgrade has another gateway take over from old.
func upgrade(t *testing.T, old *gatewaytest.Gateway) *gatewaytest.Gateway {
	t.Helper()
	next := gatewaytest.Upgrade(t, old, old.Config)
	if err := old.Leave(); err != nil {
		t.Fatal(err)
	}
	return next
}

// sleeper is a PostgreSQL client whose statement runs until it is canceled.
type sleeper struct {
	conn  *pgx.Conn
	ended chan error
}

func startSleeper(t *testing.T, db *pgtest.Cluster, addr, name string) *sleeper {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://u@%s/postgres?sslmode=disable&application_name=%s", addr, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	s := &sleeper{conn, make(chan error, 1)}
	go func() {
		_, err := conn.Exec(t.Context(), "select pg_sleep(600) /* "+name+" */")
		s.ended <- err
	}()
	watch := db.Connect(t)
	conntest.Eventually(t, name+" sleeps", func() (sleeps bool) {
		err := watch.QueryRow(t.Context(), "select count(*) > 0 from pg_stat_activity where wait_event = 'PgSleep' and query like $1", "%/* "+name+" */%").Scan(&sleeps)
		return err == nil && sleeps
	})
	return s
}

// canceled reports whether the statement ends, because somebody has canceled it.
func (s *sleeper) canceled(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.ended:
		if err == nil || !strings.Contains(err.Error(), "57014") {
			t.Errorf("the statement ended with %v, not canceled", err)
		}
	case <-time.After(conntest.Patience):
		t.Error("the statement was not canceled")
	}
}

// requestOn sends the cancel request of s on a connection, and waits until the gateway closes it.
func (s *sleeper) requestOn(t *testing.T, c net.Conn) {
	t.Helper()
	m := binary.BigEndian.AppendUint32(nil, uint32(12+len(s.conn.PgConn().SecretKey())))
	m = binary.BigEndian.AppendUint32(m, 80877102)
	m = append(binary.BigEndian.AppendUint32(m, s.conn.PgConn().PID()), s.conn.PgConn().SecretKey()...)
	if _, err := c.Write(m); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("after a cancel request: %v", err)
	}
}

const upgradePostgres = `
engine: {engine}
admin: "{admin}"
drain_timeout: 1m
listeners:
  - {name: db, protocol: postgres, listen: "{listen}", upstream: pg, postgres: {databases: {"*": pg}, auth: trust}}
upstreams:
  pg:
    endpoints: ["{addr}"]
    postgres: {user: "{user}", dbname: postgres}
`

func upgradeOf(t *testing.T, engine string, db *pgtest.Cluster) *gatewaytest.Gateway {
	t.Helper()
	return run(t, parse(t, upgradePostgres, "{engine}", engine, "{admin}", conntest.FreeAddress(t), "{listen}", conntest.FreeAddress(t),
		"{addr}", db.Addr(), "{user}", db.Superuser()))
}

// TestUpgradePassesCancelRequestsOn: a cancel request that reaches another process than its session's is passed on, from a
// new process to each old one, and from an old one to the new one.
func TestUpgradePassesCancelRequestsOn(t *testing.T) {
	db := pgtest.Start(t)
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) {
			first := upgradeOf(t, engine, db)
			addr := first.Addr("db")
			s1 := startSleeper(t, db, addr, "first")
			early := dial(t, addr) // stays with the first process
			conntest.Eventually(t, "accepted", func() bool { return first.Snapshot().Listeners[0].Active == 2 })
			second := upgrade(t, first)
			s2 := startSleeper(t, db, addr, "second")
			third := upgrade(t, second)
			s3 := startSleeper(t, db, addr, "third")
			for _, s := range []*sleeper{s1, s2} { // both reach the third process
				s.requestOn(t, dial(t, addr))
				s.canceled(t)
			}
			s3.requestOn(t, early)
			s3.canceled(t)
			_ = third
		})
	}
}

// sessionIDs returns the IDs of the sessions that the admin page lists, by client.
func sessionIDs(t *testing.T, page string) map[string]string {
	t.Helper()
	code, body, err := get(client(t), page+"/api/v1/sessions")
	var s admin.Sessions
	if err != nil || code != http.StatusOK || json.Unmarshal([]byte(body), &s) != nil {
		t.Fatal(code, body, err)
	}
	ids := map[string]string{}
	for _, one := range s.Sessions {
		ids[one.Client] = one.ID
	}
	return ids
}

// killSession asks the admin page to end a session, and returns the status of its answer.
func killSession(t *testing.T, page, id string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodDelete, page+"/api/v1/sessions/"+id, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(admin.ReloadHeader, "1")
	code, _, err := do(client(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// oldProcesses is what the admin page says about the old processes.
func oldProcesses(t *testing.T, page string) (rows []gateway.OldProcess) {
	t.Helper()
	code, body, err := get(client(t), page+"/api/v1/old_processes")
	if err != nil || code != http.StatusOK || json.Unmarshal([]byte(body), &rows) != nil {
		t.Fatal(code, body, err)
	}
	return rows
}

// TestUpgradeShowsOldSessions: the process that serves shows the sessions of old ones and ends them on request, says how
// many there are, and notices when an old one ends.
func TestUpgradeShowsOldSessions(t *testing.T) {
	text := strings.Replace(tcpText, "admin: 127.0.0.1:0", `admin: "{admin}"`, 1)
	first := run(t, parse(t, text, "{listen}", conntest.FreeAddress(t), "{admin}", conntest.FreeAddress(t), "{echo}", echoServer(t)))
	var clients []net.Conn
	processes := []*gatewaytest.Gateway{first}
	for i := range 3 {
		c := dial(t, first.Addr("raw"))
		echo(t, c, "hello")
		clients = append(clients, c)
		if i < 2 {
			processes = append(processes, upgrade(t, processes[i]))
		}
	}
	for _, old := range processes[:2] {
		old.Stop()
	}
	page, suffix := "http://"+processes[2].Addr("admin"), fmt.Sprintf("@%d", os.Getpid())
	var ids map[string]string
	conntest.Eventually(t, "the sessions of all processes", func() bool { ids = sessionIDs(t, page); return len(ids) == 3 }) // one may answer late
	id := func(client int) string { return ids[clients[client].LocalAddr().String()] }
	for i := range clients {
		if old := i < 2; id(i) == "" || strings.HasSuffix(id(i), suffix) != old {
			t.Errorf("session %d has the ID %q among %v", i, id(i), ids)
		}
	}
	conntest.Eventually(t, "two old processes with a session each", func() bool {
		rows := oldProcesses(t, page)
		return len(rows) == 2 && !slices.ContainsFunc(rows, func(p gateway.OldProcess) bool {
			return p.Sessions != 1 || p.Until.Sub(p.Since) < 10*time.Second || p.Silent || p.PID != os.Getpid()
		})
	})
	for _, wrong := range []string{"1" + suffix, id(0) + "7", "@", "x@y"} {
		if code := killSession(t, page, wrong); code != http.StatusNotFound {
			t.Errorf("kill of %s: %d", wrong, code)
		}
	}
	_ = killSession(t, page, id(1)) // the answer may be late
	_ = conntest.WantGone(t, clients[1])
	if err := <-processes[1].Result; err != nil {
		t.Error(err)
	}
	echo(t, clients[0], "still there")
	_ = clients[0].Close()
	conntest.Eventually(t, "the old processes have ended", func() bool { return len(oldProcesses(t, page)) == 0 })
	if ids := sessionIDs(t, page); len(ids) != 1 || ids[clients[2].LocalAddr().String()] == "" {
		t.Errorf("sessions %v", ids)
	}
	echo(t, clients[2], "still there")
}

// TestUpgradeKeepsOperatorsChanges: pauses and changes of endpoints are in force in the new process, also those that
// were made while it started, and a pause ends when it would have.
func TestUpgradeKeepsOperatorsChanges(t *testing.T) {
	text := `
drain_timeout: 10s
listeners:
  - {name: a, protocol: tcp, listen: "{a}", upstream: a}
  - {name: b, protocol: tcp, listen: "{b}", upstream: b}
upstreams:
  a: {endpoints: ["127.0.0.1:1", "127.0.0.2:1"]}
  b: {endpoints: ["127.0.0.1:1", "127.0.0.2:1"]}
`
	old := run(t, parse(t, text, "{a}", conntest.FreeAddress(t), "{b}", conntest.FreeAddress(t)))
	change := func(name string, action upstream.Action, address string, keep bool) {
		t.Helper()
		e := upstream.Endpoint{Address: address}
		if action == upstream.AddEndpoint && keep {
			e.Weight, e.Priority, e.Zone = 3, 2, "z"
		}
		if err := old.ChangeEndpoint(name, upstream.Change{Action: action, Endpoint: e, Keep: keep}); err != nil {
			t.Fatal(err)
		}
	}
	change("a", upstream.DrainEndpoint, "127.0.0.1:1", false)
	change("a", upstream.AddEndpoint, "127.0.0.3:1", true)
	pause(t, old, "a")
	pause(t, old, "b")
	next := gatewaytest.Upgrade(t, old, old.Config)
	states := func(g *gatewaytest.Gateway) (all []upstream.Status) {
		for _, u := range g.Snapshot().Upstreams {
			all = append(all, u.Status)
		}
		return all
	}
	same := func(when string) {
		t.Helper()
		is, was := states(next), states(old)
		for i := range was {
			if overridden(is[i]) != overridden(was[i]) || is[i].PausedUntil.Sub(was[i].PausedUntil).Abs() > time.Second {
				t.Errorf("%s: upstream %s has %s until %v, was %s until %v", when, was[i].Name, overridden(is[i]), is[i].PausedUntil, overridden(was[i]), was[i].PausedUntil)
			}
		}
	}
	same("at the start")
	resume(t, old, "a")
	change("a", upstream.AddEndpoint, "127.0.0.1:1", false)
	change("b", upstream.RemoveEndpoint, "127.0.0.1:1", true)
	if err := old.PauseUpstream("b", 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := old.Leave(); err != nil {
		t.Fatal(err)
	}
	same("in the end")
	for _, e := range states(next)[0].Endpoints {
		if e.Address == "127.0.0.3:1" && (e.Weight != 3 || e.Priority != 2 || e.Zone != "z") {
			t.Errorf("added endpoint: %+v", e)
		}
	}
	if err := next.Reload(next.Config); err != nil {
		t.Fatal(err)
	}
	if got := overridden(states(next)[1]); got != "127.0.0.2 127.0.0.1=removed" {
		t.Errorf("after a reload, which keeps what was to be kept: %s", got)
	}
}

// TestSessionsOfOtherVersions: the names in which processes describe their sessions do not change.
func TestSessionsOfOtherVersions(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	text := `{"ID":"a","Listener":"l","Protocol":"p","Client":"c","Accepted":"2026-01-02T03:04:05Z","State":"idle","Since":"2026-01-02T03:04:05Z","Draining":true,
"User":"u","Database":"d","Application":"n","Method":"m","Host":"h","Path":"/","Statement":"s","Streams":1,"Upstream":"up","Endpoint":"e","ServerPID":2,
"Held":"2026-01-02T03:04:05Z","Pinned":"pin","Channels":3,"BytesIn":4,"BytesOut":5,"Later":{}}`
	want := listener.Info{
		ID: "a", Listener: "l", Protocol: "p", Client: "c", Accepted: at, State: listener.StateIdle, Since: at, Draining: true,
		User: "u", Database: "d", Application: "n", Method: "m", Host: "h", Path: "/", Statement: "s", Streams: 1, Upstream: "up", Endpoint: "e", ServerPID: 2,
		Held: at, Pinned: "pin", Channels: 3, BytesIn: 4, BytesOut: 5,
	}
	var got listener.Info
	if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSessionsWithLongNames: clients with long names do not make the answer about an old process's sessions too large.
func TestSessionsWithLongNames(t *testing.T) {
	for length, want := range map[int]int{20: 10_000, 9900: 100} {
		answer, n := gateway.Fitting(slices.Repeat([]listener.Info{{ID: "a", Application: strings.Repeat("<", length)}}, 20_000))
		if text, err := json.Marshal(answer); err != nil || len(text) > 8<<20 || n < want || n > 10_000 {
			t.Errorf("names of %d bytes: %d sessions, %d bytes, %v", length, n, len(text), err)
		}
	}
}
