package sqlite_test

import (
	"testing"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/upstream"
)

// The backend accepts what a pooler sends between two of its clients, and what those clients send.
func TestBehindAnotherGateway(t *testing.T) {
	s := start(t)
	far, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{Name: "far", Settings: upstream.Settings{Endpoints: upstream.Endpoints(s.addr)}, User: "app", DBName: "app"})
	if err != nil {
		t.Fatal(err)
	}
	near := serve(t, far, "")
	for range 2 {
		conn := near.connect(t)
		mustExec(t, conn, "SET application_name = 'near'")
		mustExec(t, conn, "SET statement_timeout = '1min'")
		if n := one[int64](t, conn, "SELECT count(*) FROM users WHERE id <= $1", 2); n != 2 {
			t.Errorf("%d users", n)
		}
		if _, err := conn.Exec(t.Context(), "SET SESSION AUTHORIZATION somebody"); err == nil {
			t.Error("there is no other role")
		}
	}
}
