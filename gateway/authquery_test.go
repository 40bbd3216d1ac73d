package gateway_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
)

const authQueryText = `
drain_timeout: 10s
listeners:
  - name: db
    protocol: postgres
    listen: 127.0.0.1:0
    postgres:
      databases: {app: pg, "*": other}
      auth: md5
      auth_query: "{query}"
      auth_upstream: {from}
upstreams:
  pg:
    endpoints: ["{server}"]
    postgres: {user: "{user}", password: "{password}", dbname: postgres}
  other:
    endpoints: ["127.0.0.1:1"]
    postgres: {user: nobody}
`

// TestAuthQuery has a server look up the users of a listener, and a reload change the query and the server.
func TestAuthQuery(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "CREATE ROLE shop LOGIN PASSWORD 'of the server'")
	text := func(query, from string) []string {
		return []string{"{query}", query, "{from}", from, "{server}", db.Addr(), "{user}", db.Superuser(), "{password}", db.Password()}
	}
	gw := run(t, parse(t, authQueryText, text("SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1", "pg")...))
	login := func(password string) error {
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://shop:%s@%s/app?sslmode=disable", password, gw.Addr("db")))
		if err == nil {
			err = conn.Close(t.Context())
		}
		return err
	}
	if err := login("of%20the%20server"); err != nil {
		t.Error(err)
	}
	if err := gw.Reload(parse(t, authQueryText, text("SELECT $1::text, 'md5' || pg_catalog.md5('of the query' || $1)", "pg")...)); err != nil {
		t.Fatal(err)
	}
	if err := login("of%20the%20query"); err != nil {
		t.Errorf("after a reload: %v", err)
	}
	if err := login("of%20the%20server"); err == nil {
		t.Error("after a reload the old query is in force")
	}
	if err := gw.Reload(parse(t, authQueryText, text("SELECT $1::text, 'md5' || pg_catalog.md5('of the query' || $1)", "other")...)); err != nil {
		t.Fatal(err)
	}
	if err := login("of%20the%20query"); err == nil {
		t.Error("after a reload the old server is asked")
	}
}
