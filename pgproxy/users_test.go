package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// pgbouncerList is a userlist.txt as PgBouncer takes it, and as its mkauth.py writes it.
const pgbouncerList = `
; users of the shop
"marko" "asdasd" ""
  "quoted""name" "with ""quotes"" and \ backslash"
"empty" ""
"md5user" "md5bf0ca7b3ffb6b3a5d10dc3bc3ffa61d0"   ; what follows is no part of it
"spaced"	,	"out"

;"commented" "out"
# "commented" "out"
"last" "line"`

func TestPgBouncersUserList(t *testing.T) {
	users, err := pgproxy.ParseUsers(strings.NewReader(pgbouncerList))
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]string{
		"marko": "asdasd", `quoted"name`: `with "quotes" and \ backslash`, "empty": "", "spaced": "out", "last": "line",
		"md5user": "md5bf0ca7b3ffb6b3a5d10dc3bc3ffa61d0",
	} {
		if got, ok := users[user]; !ok || got != want {
			t.Errorf("the secret of %s is %q, want %q", user, got, want)
		}
		delete(users, user)
	}
	if len(users) > 0 {
		t.Errorf("more users: %q", users)
	}
	for _, bad := range []string{`marko "asdasd"`, `"marko"`, `"marko" asdasd`, `"marko" "asd`, `"" "secret"`, "\"a\" \"1\"\n\"a\" \"2\""} {
		if _, err := pgproxy.ParseUsers(strings.NewReader(bad)); err == nil {
			t.Errorf("no error for %s", bad)
		}
	}
}

// TestEmptySecret has users without a password try to log in.
func TestEmptySecret(t *testing.T) {
	for _, auth := range []pgproxy.Auth{pgproxy.AuthSCRAM, pgproxy.AuthMD5} {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
			c.Auth, c.Users = auth, pgproxy.Users{"empty": "", "known": "secret"}
		})
		for _, password := range []string{"''", "md5", "x"} {
			if _, err := pgx.Connect(t.Context(), g.dsn("user=empty password="+password)); sqlstate(err) != "28P01" {
				t.Errorf("%s, password %s: %v", auth, password, err)
			}
		}
		conn, err := pgx.Connect(t.Context(), g.dsn("user=known password=secret"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close(t.Context())
	}
}
