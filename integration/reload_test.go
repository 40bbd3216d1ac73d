package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
)

// reload replaces the configuration, sends SIGHUP and waits until the gateway has counted the result.
func (g *gateway) reload(config, result string) {
	g.t.Helper()
	before := g.scrape().sum("headpond_config_reloads_total", `result="`+result+`"`)
	g.write(config)
	g.signal(syscall.SIGHUP)
	eventually(g.t, "the reload is "+result, func() error {
		m := g.scrape()
		if now := m.sum("headpond_config_reloads_total", `result="`+result+`"`); now != before+1 {
			return fmt.Errorf("%v reloads %s, %v applied, %v refused", now, result,
				m.sum("headpond_config_reloads_total", `result="applied"`), m.sum("headpond_config_reloads_total", `result="refused"`))
		}
		return nil
	})
}

func TestReloadUnderLoadFailsNoRequest(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t), "steady")
	a, b, c := startHTTP(t), startHTTP(t), startHTTP(t)
	web, sql := address(t), address(t)
	config := func(poolSize int, backends ...string) string {
		size := fmt.Sprintf("max_size: %d, acquire_timeout: 30s", poolSize)
		return join(httpConfig(web, size, backends...), db.pgConfig(t, sql, "transaction", size))
	}
	g := startGateway(t, config(8, a.addr(), b.addr()))
	client := httpClient(t)
	requests := startLoad(t, 8, func(ctx context.Context) error {
		code, body, err := get(client, "http://"+web+"/")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	queries := startLoad(t, 8, query(db.dsn(sql)))
	long := connect(t, db.dsn(sql)) // a session that outlives every reload
	for i, backends := range [][]string{{a.addr(), c.addr()}, {b.addr()}, {a.addr(), b.addr(), c.addr()}, {c.addr(), a.addr()}} {
		requests.awaitMore(t, 100)
		queries.awaitMore(t, 50)
		g.reload(config(4+4*i, backends...), "applied")
		if _, err := long.Exec(t.Context(), "select 1"); err != nil {
			t.Errorf("a session that was there before reload %d: %v", i, err)
		}
	}
	g.reload("listeners: [{name: web, color: red}]\n", "refused")
	if line := g.awaitLog("unknown key", "color"); !strings.Contains(line, ":3:") {
		t.Errorf("the log does not say where in the file: %s", line)
	}
	requests.awaitMore(t, 100)
	queries.awaitMore(t, 50)
	requests.end()
	queries.end()
	for what, l := range map[string]*load{"request": requests, "query": queries} {
		if n := l.failed.Load(); n > 0 {
			t.Errorf("%d %s(s) of %d failed: %v", n, what, n+l.ok.Load(), l.lastError())
		}
	}
	if m := g.scrape(); m.sum("headpond_config_last_reload_successful") != 0 {
		t.Error("the metric says that the last reload was applied")
	}
}

func TestReloadAddsAndRemovesListeners(t *testing.T) {
	a := startHTTP(t)
	first, second := address(t), address(t)
	g := startGateway(t, httpConfig(first, "max_size: 4", a.addr()))
	client := httpClient(t)
	g.reload(httpConfig(second, "max_size: 4", a.addr()), "applied")
	eventually(t, "the new address answers", func() error {
		_, _, err := get(client, "http://"+second+"/")
		return err
	})
	client.CloseIdleConnections()
	eventually(t, "the old address is closed", func() error {
		if code, _, err := get(client, "http://"+first+"/"); err == nil {
			return fmt.Errorf("it answers %d", code)
		}
		client.CloseIdleConnections()
		return nil
	})
}

// join makes one configuration from several: their listeners and their upstreams.
func join(configs ...string) string {
	var listeners, upstreams strings.Builder
	for _, c := range configs {
		l, u, _ := strings.Cut(strings.TrimPrefix(c, "listeners:\n"), "upstreams:\n")
		listeners.WriteString(l)
		upstreams.WriteString(u)
	}
	return "listeners:\n" + listeners.String() + "upstreams:\n" + upstreams.String()
}
