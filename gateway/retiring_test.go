package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway/admin"
)

const retiringText = `
admin: 127.0.0.1:0
drain_timeout: 1m
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: lite}
upstreams:
  echo: {endpoints: ["{echo}"]}
  lite: {endpoints: ["sqlite:{dir}/app.db"]{more}}
`

// TestWhatAReloadRemovesIsShown until its last session is over, with how many there are and since when.
func TestWhatAReloadRemovesIsShown(t *testing.T) {
	pairs := []string{"{echo}", echoServer(t), "{dir}", t.TempDir()}
	g := run(t, parse(t, retiringText, append(pairs, "{more}", "")...))
	raw := dial(t, g.Addr("raw"))
	echo(t, raw, "hello")
	db, err := pgx.Connect(context.Background(), "postgres://me@"+g.Addr("db")+"/app")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.Background()) }()
	if list := g.Snapshot().Retiring; len(list) > 0 {
		t.Fatalf("before the reload: %+v", list)
	}
	before := time.Now()
	without := strings.Replace(retiringText, "  - {name: raw, protocol: tcp, listen: \"127.0.0.1:0\", upstream: echo}\n", "", 1)
	if err := g.Reload(parse(t, without, append(pairs, "{more}", ", pool: {max_size: 3}")...)); err != nil {
		t.Fatal(err)
	}
	want := map[string]admin.Retiring{
		"listener raw":  {Kind: admin.RetiringListener, Name: "raw", Protocol: "tcp", Active: 1},
		"upstream lite": {Kind: admin.RetiringUpstream, Name: "lite", Protocol: "postgres", Active: 1},
	}
	list := g.Snapshot().Retiring
	for _, r := range list {
		if r.Since.Before(before) || r.Since.After(time.Now()) {
			t.Errorf("%s %s since %v", r.Kind, r.Name, r.Since)
		}
		r.Since = time.Time{}
		if r != want[r.Kind+" "+r.Name] {
			t.Errorf("%+v", r)
		}
	}
	if len(list) != len(want) {
		t.Fatalf("%d retire: %+v", len(list), list)
	}
	_, body, err := get(client(t), "http://"+g.Addr("admin")+"/metrics")
	if err != nil || !strings.Contains(body, `headpond_retiring_active{kind="listener",name="raw"} 1`) {
		t.Errorf("%v\n%s", err, body)
	}
	echo(t, raw, "still here")
	_ = raw.Close()
	if err := db.Close(context.Background()); err != nil {
		t.Error(err)
	}
	for used := 1; used > 0; { // the upstream is there for retireGrace
		used = 0
		for _, r := range g.Snapshot().Retiring {
			used += r.Active
			if r.Kind == admin.RetiringListener {
				used++
			}
		}
		_, _, _ = get(client(t), "http://"+g.Addr("admin")+"/healthz")
	}
}
