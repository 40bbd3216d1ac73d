package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/extend"
)

// Some addresses of extensions cannot be handed over, and the next process can open them only when this one has closed
// them. It starts and serves without them before this process gives them up, so that if its start fails nothing is lost.

const (
	// vacateGrace is how long sessions at such addresses may continue after Leave. The new process waits meanwhile.
	vacateGrace = 2 * time.Second
	// vacatePatience is how long the new process waits at most. Then it tries to open them.
	vacatePatience = time.Minute
)

// vacate gives up the addresses that cannot be handed over, and tells the new process.
func (g *Gateway) vacate() {
	ctx, cancel := context.WithTimeout(g.hard, vacateGrace)
	defer cancel()
	var leavers []extend.Leaver
	for _, p := range g.parts {
		if l, ok := p.(extend.Leaver); ok {
			leavers = append(leavers, l)
		}
	}
	inParallel(leavers, func(l extend.Leaver) error { l.Leave(ctx); return nil })
	newer := slices.DeleteFunc(g.processes.list(), func(p *process) bool { return p.older })
	askAll[any](newer, statePatience, askVacated, nil)
}

// awaitVacated closes g.vacated once the previous process has vacated, has ended, or takes too long.
func (g *Gateway) awaitVacated() {
	older := g.processes.older()
	if len(older) == 0 {
		g.noteVacated()
		return
	}
	g.tasks.Go(func() {
		limit := time.NewTimer(vacatePatience)
		defer limit.Stop()
		select {
		case <-g.vacated:
		case <-older[0].link.Done():
		case <-limit.C:
		}
		g.noteVacated()
	})
}

// noteVacated closes g.vacated.
func (g *Gateway) noteVacated() { g.vacating.Do(func() { close(g.vacated) }) }
