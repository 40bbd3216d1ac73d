package suite

import (
	"fmt"

	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// userJSON is the body that the JSON workload of W5 sends.
const userJSON = `{"name":"Ada Lovelace","email":"ada@example.com","age":36,"country":"GB"}`

// routeServers is W5 with real servers. Each is a process with as many threads as the gateway has loops.
func (e *Env) routeServers(b goBenchmark) run.Group {
	g := run.Group{Name: "typed handlers, servers"}
	for _, name := range []string{"gin", "pooled", "ginroute", "prepared"} {
		g.Arms = append(g.Arms, arm(name, func() (*peers.Target, error) {
			args := []string{"-test.run", "^TestServe$", "-test.cpu", fmt.Sprint(e.Loops), "-test.timeout", "0"}
			return e.Starter.StartProgram("route-"+name, b.program, args, func(addr string) []string {
				return []string{"ROUTE_ARM=" + name, "ROUTE_LISTEN=" + addr, "ROUTE_FOR=1000h"}
			})
		}))
	}
	one := func(id, title string, w load.Workload) run.Case {
		return run.Case{
			Info: result.Case{
				ID: "route/server/" + id, Suite: "route", Conns: 32, Metrics: latencyMetrics,
				Title: "W5 typed handlers behind a server of net/http: " + title + ", 32 connections",
				Note:  "prepared reads the body and writes an answer made before: the least that net/http costs",
			},
			Baselines: []string{"gin"}, Open: e.openLoad(w, 32, nil), Rounds: e.few(),
		}
	}
	g.Cases = []run.Case{
		one("json", "POST of JSON", load.PostBody("/api/users", "application/json", []byte(userJSON))),
		one("get", "GET", load.Get("/api/users")),
	}
	return g
}

// few limits the rounds of a quick run.
func (e *Env) few() int {
	if e.Quick {
		return 5
	}
	return 0
}
