package suite

import (
	"github.com/headpond/headpond/bench/internal/run"
)

// engine is workload W7: each engine of the gateway beside the programs that it is compared with.
func (e *Env) engine() []run.Group {
	tcp := run.Group{Name: "engine, TCP", Arms: e.byteProxies(e.echoTarget), Prepare: e.prepareEcho, Cases: e.sustained("engine", fast, 64)}
	standard := append([]string{"reverseproxy", "reverseproxy-default"}, fast...)
	web := run.Group{Name: "engine, HTTP", Arms: e.webProxies(e.webTarget, false), Prepare: e.prepareWeb, Cases: e.gets("engine", standard, 64)}
	sql := run.Group{Name: "engine, PostgreSQL", Arms: e.poolers(), Prepare: e.preparePostgres, Cases: e.lookUps("engine", 32)}
	if !e.Quick {
		sql.Cases = append(sql.Cases, e.lookUps("engine", 200)...)
	}
	return []run.Group{only(tcp), only(web), only(sql), e.idleClients("engine"), only(e.streams("engine", fast))}
}

// only removes the arms that no case of the group measures.
func only(g run.Group) run.Group {
	wanted := map[string]bool{}
	for _, c := range g.Cases {
		if len(c.Arms) == 0 {
			return g
		}
		for _, a := range c.Arms {
			wanted[a] = true
		}
	}
	var arms []run.Arm
	for _, a := range g.Arms {
		if wanted[a.Name] {
			arms = append(arms, a)
		}
	}
	g.Arms = arms
	return g
}
