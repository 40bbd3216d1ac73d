package integration

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// metrics is one scrape: value by series, as in `name{label="x"}`.
type metrics map[string]float64

// scrape fetches and parses /metrics.
func (g *gateway) scrape() metrics {
	g.t.Helper()
	code, body := g.get("/metrics")
	if code != http.StatusOK {
		g.t.Fatalf("/metrics: %d %s", code, body)
	}
	m := metrics{}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			g.t.Fatalf("/metrics: %q: %v", line, err)
		}
		m[line[:i]] = v
	}
	return m
}

// sum adds the series of a metric that have all labels, given as `name="value"`.
func (m metrics) sum(name string, labels ...string) float64 {
	var total float64
	for series, v := range m {
		metric, rest, _ := strings.Cut(series, "{")
		if metric == name && containsAll(rest, labels) {
			total += v
		}
	}
	return total
}

// errors returns headpond_listener_errors_total of a listener, for one reason.
func (m metrics) errors(listener, reason string) float64 {
	return m.sum("headpond_listener_errors_total", `listener="`+listener+`"`, `reason="`+reason+`"`)
}

// footprint is what sessions must release: descriptors, fibers and goroutines, without the
// connections and pipes that pools keep.
type footprint struct{ descriptors, goroutines, fibers, sessions, waiting float64 }

func (g *gateway) footprint() footprint {
	g.t.Helper()
	m := g.scrape()
	pooled := m.sum("headpond_pool_idle") + m.sum("headpond_pool_opening")
	return footprint{
		descriptors: m.sum("process_open_fds") - pooled - m.sum("headpond_pool_in_use") - idlePipes(g),
		goroutines:  m.sum("go_goroutines") - m.sum("headpond_engine_spare_fibers"), // with the race detector all spare fibers are kept
		fibers:      m.sum("headpond_engine_fibers"),
		sessions:    m.sum("headpond_listener_connections_active") + m.sum("headpond_pool_in_use"),
		waiting:     m.sum("headpond_pool_waiting") + m.sum("headpond_listener_connections_queued"),
	}
}

// slack allows for the runtime's own changes: the goroutine of a timer or a scrape, a descriptor
// between accept and close.
const slack = 3

// awaitFootprint waits until the gateway holds no more than before.
func (g *gateway) awaitFootprint(before footprint) {
	g.t.Helper()
	eventually(g.t, "the gateway gives back what its sessions held", func() error {
		now := g.footprint()
		if now.descriptors > before.descriptors+slack || now.goroutines > before.goroutines+slack ||
			now.fibers > before.fibers+slack || now.sessions > before.sessions || now.waiting > before.waiting {
			return fmt.Errorf("before %+v, now %+v", before, now)
		}
		return nil
	})
}
