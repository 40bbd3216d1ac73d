package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// TestServersThatAnswerWithErrors can be connected to and are healthy, but the status names those of the last minute.
func TestServersThatAnswerWithErrors(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }))
	defer broken.Close()
	strict := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "unknown method", http.StatusNotImplemented)
	}))
	defer strict.Close() // what it answers is the fault of its clients
	good, db := webServer(t, "good"), pgtest.Start(t)
	listen := freeAddresses(t, 4)
	g := run(t, parse(t, `
admin: {admin}
listeners:
  - {name: db, protocol: postgres, listen: "{pg}", upstream: pg}
  - {name: web, protocol: http, listen: "{web}", upstream: site}
  - {name: other, protocol: http, listen: "{other}", upstream: strict}
upstreams:
  pg: {endpoints: ["{db}"], postgres: {user: "{user}", password: "{password}", dbname: postgres}}
  site: {endpoints: ["{good}", "{broken}"], balance: round_robin}
  strict: {endpoints: ["{strict}"]}
`, "{admin}", listen[0], "{pg}", listen[1], "{web}", listen[2], "{other}", listen[3], "{db}", db.Addr(), "{user}", db.Superuser(), "{password}", db.Password(),
		"{good}", good, "{strict}", strict.Listener.Addr().String(), "{broken}", broken.Listener.Addr().String()))
	trouble := func() string {
		t.Helper()
		_, body, err := get(client(t), "http://"+listen[0]+"/api/v1/status")
		var s struct{ Trouble []string }
		if err == nil {
			err = json.Unmarshal([]byte(body), &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(s.Trouble, "\n")
	}
	conn, err := pgx.Connect(context.Background(), "postgres://me@"+listen[1]+"/postgres?sslmode=disable&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	askBoth := func(state string) {
		t.Helper()
		for range 4 {
			if _, err := conn.Exec(context.Background(), "do $$ begin raise sqlstate '"+state+"'; end $$"); err == nil {
				t.Fatal("no error")
			}
		}
		for i := range 60 {
			if _, _, err := get(client(t), "http://"+listen[2+i/40]); err != nil {
				t.Fatal(err)
			}
		}
	}
	askBoth("53100") // of any age: the gateway forgets what it has counted until then
	begin := time.Now().Add(2 * time.Minute)
	g.KeepTotal(begin)
	askBoth("P0001") // an error of the application
	// Statements can cause these, too.
	for _, wrong := range []string{"select pg_describe_object(1, 1, 0)", "do $$ begin raise sqlstate '53400'; end $$"} {
		var failed *pgconn.PgError
		if _, err := conn.Exec(context.Background(), wrong); !errors.As(err, &failed) || failed.Code != "XX000" && failed.Code != "53400" {
			t.Fatalf("%s: %v", wrong, err)
		}
	}
	site := "upstream site, endpoint " + broken.Listener.Addr().String() + ": of 20 requests in the last minute 20 were answered with a status of 500 or more"
	conntest.Eventually(t, site, func() bool { return trouble() == site })
	askBoth("53100")
	pg := "upstream pg, endpoint " + db.Addr() + ": of 10 requests in the last minute 4 ended with an error of the server itself, of SQLSTATE class 53"
	conntest.Eventually(t, pg, func() bool { return strings.Contains(trouble(), pg) })
	g.KeepTotal(begin.Add(2 * time.Minute))
	if got := trouble(); got != "" {
		t.Errorf("two minutes later: %s", got)
	}
}
