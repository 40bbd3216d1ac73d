package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgwire"
)

// TestResetGoesBackToStartup resets settings as pools of drivers do between two users: the client's startup settings
// stay, as on a direct connection.
func TestResetGoesBackToStartup(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, small)
	straight, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), "postgres")+"&timezone=Asia/Tokyo&application_name=mine&work_mem=7MB&datestyle=SQL")
	if err != nil {
		t.Fatal(err)
	}
	defer straight.Close(t.Context())
	conn, other := g.connect(t, "timezone=Asia/Tokyo application_name=mine work_mem=7MB datestyle=SQL"), g.connect(t, "")
	look := "select current_setting('timezone')||' '||current_setting('application_name')||' '||current_setting('work_mem')||' '||current_setting('datestyle')"
	for _, sql := range []string{
		"set timezone='Europe/Madrid'; set application_name='other'; discard plans", "reset work_mem", "reset timezone", "set datestyle='ISO, DMY'", "reset all",
		"set timezone='Europe/Rome'", "begin; reset timezone; rollback", "begin; reset timezone; commit", "set work_mem='9MB'; reset work_mem",
		"set application_name='other'", "discard all", "set timezone='GMT'", "reset application_name", "discard all", "set timezone='UTC'; set datestyle='ISO, MDY'", "discard all",
	} {
		var want, got string
		for _, c := range []struct {
			conn *pgx.Conn
			got  *string
		}{{straight, &want}, {conn, &got}} {
			do(t, c.conn, sql, pgx.QueryExecModeSimpleProtocol)
			do(t, other, "select 1")
			*c.got = one[string](t, c.conn, look, pgx.QueryExecModeSimpleProtocol) + " " + c.conn.PgConn().ParameterStatus("TimeZone") +
				" " + c.conn.PgConn().ParameterStatus("application_name")
		}
		if got != want {
			t.Errorf("after %s: %s, straight on the server %s", sql, got, want)
		}
	}
}

// TestStatementsUnderASearchPath has clients with different search paths prepare the same text on a server that reports them, as servers do
// from PostgreSQL 18 on: it means other tables to each, perhaps with other columns, which no plan can be changed to.
func TestStatementsUnderASearchPath(t *testing.T) {
	g, f := startFake(t, nil, &pgwire.ParameterStatus{Name: "search_path", Value: "public"})
	names := make(chan string, 10)
	go func() {
		defer close(names)
		for srv := <-f.conns; ; {
			typ, body, err := srv.try()
			switch {
			case err != nil:
				return
			case typ == pgwire.TypeQuery:
				for _, path := range []string{"first", "second"} {
					if has(body, "'"+path+"'") {
						srv.send(&pgwire.ParameterStatus{Name: "search_path", Value: path})
					}
				}
				srv.send(&pgwire.CommandComplete{Tag: "SELECT 1"}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			case typ == pgwire.TypeParse:
				name, _, _ := strings.Cut(body, "\x00")
				names <- name
				srv.send(&pgwire.ParseComplete{})
			case typ == pgwire.TypeSync:
				srv.send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			}
		}
	}()
	var prepared []string
	for _, path := range []string{"first", "second"} {
		w := g.dial(t, pgwire.Param{Name: "search_path", Value: path})
		w.send(&pgwire.Parse{Name: "s", Query: "select * from t"}, &pgwire.Sync{})
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "1Z" {
			t.Fatal(types)
		}
		select {
		case name := <-names:
			prepared = append(prepared, name)
		default:
		}
	}
	if len(prepared) != 2 || prepared[0] == prepared[1] {
		t.Errorf("the server was given %q", prepared)
	}
}
