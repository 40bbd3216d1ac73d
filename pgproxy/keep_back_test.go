package pgproxy_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgwire"
)

// TestResetBesideValues has a client return some settings to those of its startup, and give others the values that the gateway's login has, or
// none. It has, and was told of, what a direct connection has.
func TestResetBesideValues(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, small)
	for _, script := range [][]string{
		{"set datestyle to default; set timezone = 'UTC'"},
		{"reset datestyle; set timezone = 'UTC'"},
		{"begin", "set timezone = 'UTC'", "reset datestyle", "commit"},
		{"set app.x = ''; reset work_mem"},
		{"reset role; set app.x = ''; set datestyle to default"},
		{"begin", "select set_config('app.x', '', false)", "set datestyle to default", "commit"},
		{"set app.x = 'x'; reset app.x"},
		{"begin", "reset app.x", "set app.own = 'x'", "commit"},
		{"begin", "set app.own = ''; set app.x = ''", "reset app.own", "commit"},
		{"begin", "select set_config('app.x', 'x', false)", "reset all; set datestyle = 'ISO, MDY'", "commit and chain", "select 1/0", "rollback"},
		{"begin", "select set_config('app.x', 'y', false)", "reset all; set datestyle = 'ISO, MDY'", "commit and chain", "set session time zone default", "release a", "commit and chain", "rollback"},
		{"set app.x = ''", "reset app.x"},
		{"set app.x = ''", "reset all"},
		{"set app.x = ''", "discard all"},
		{"set app.x = ''", "set app.x to default"},
		{"set app.x = ''", "select 1/0", "reset app.x"},
		{"do $$ begin perform set_config('app.x', '', false); end $$", "reset app.x"},
		{"set app.x = 'v'", "do $$ begin reset app.x; end $$"},
		{"set app.x = ''", "begin", "reset app.x", "rollback"},
		{"set app.x = ''", "reset timezone"},
		{"set app.x = ''", "begin", "savepoint a", "reset app.x", "rollback to a", "reset timezone", "commit"},
		{"set app.x = 'v'", "begin", "reset app.x", "savepoint a", "set app.x = 'y'", "rollback to a", "commit"},
		{"set app.x = 'v'", "begin", "reset app.x", "savepoint a", "select set_config('app.x', 'y', false)", "rollback to a", "commit"},
		{"begin", "reset app.x", "set local app.x = ''", "commit"},
		{"set app.x = 'v'", "begin", "set app.x = ''", "savepoint a", "reset app.x", "release a", "commit"},
		{"set app.x = 'v'", "begin", "reset app.x", "set app.x to ''", "commit"},
		{"set timezone = 'UTC'", "do $$ begin set timezone to default; end $$"},
		{"set timezone = 'UTC'", "do $$ begin reset timezone; end $$"},
	} {
		var got [2]string
		for i, addr := range []string{g.addr, db.Addr()} {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			w := newWire(t, conn).login(pgwire.Param{Name: "user", Value: db.Superuser()}, pgwire.Param{Name: "database", Value: "postgres"},
				pgwire.Param{Name: "TimeZone", Value: "Asia/Tokyo"}, pgwire.Param{Name: "options", Value: "-c app.x=started"})
			told := "Asia/Tokyo"
			for _, text := range append(script, "select concat_ws(' ', current_setting('timezone'), current_setting('datestyle'), current_setting('app.x'))") {
				_, bodies := w.ask(query(text))
				if j := strings.LastIndex(bodies, "TimeZone\x00"); j >= 0 {
					told, _, _ = strings.Cut(bodies[j+len("TimeZone\x00"):], "\x00")
				}
				got[i] = bodies
			}
			got[i] = fmt.Sprintf("%q, told of %s", got[i][strings.LastIndex(got[i], "\x00\x01\x00\x00"):], told)
			_ = w.Close()
		}
		if got[0] != got[1] {
			t.Errorf("%q: %s, directly %s", script, got[0], got[1])
		}
	}
}
