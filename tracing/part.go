package tracing

import (
	"bytes"
	"context"
	"math/rand/v2"
	"reflect"
	"sync/atomic"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/httpproxy"
)

// part traces the requests of one gateway.
type part struct {
	gateway extend.Gateway
	current atomic.Pointer[exporter] // nil: nothing is traced
}

var (
	_ protocols.Tracer = (*part)(nil)
	_ httpproxy.Tracer = (*part)(nil)
)

func newPart(g extend.Gateway) extend.Part { return &part{gateway: g} }

// Tracer implements protocols.Tracer.
func (p *part) Tracer() httpproxy.Tracer { return p }

// Active implements httpproxy.Tracer.
func (p *part) Active() bool { return p.current.Load() != nil }

// Sample implements httpproxy.Tracer.
func (p *part) Sample(known, sampled bool) bool {
	e := p.current.Load()
	switch {
	case e == nil:
		return false
	case known && e.settings.Parents == FollowParents:
		return sampled
	}
	n := e.settings.Sample
	return n == 1 || n > 1 && rand.IntN(n) == 0
}

// Trace implements httpproxy.Tracer.
func (p *part) Trace(t *httpproxy.Trace) {
	if e := p.current.Load(); e != nil {
		e.trace(t)
	}
}

// Check implements extend.Part. The section is checked with the file.
func (p *part) Check(*config.Config, func(err error, at any)) {}

// Plan implements extend.Part.
func (p *part) Plan(plan *extend.Plan) error {
	old, settings := p.current.Load(), config.PartOf[FileKeys](plan.New).Tracing
	if old == nil && settings == nil {
		return nil
	}
	var next *exporter
	what := "tracing removed"
	if settings != nil {
		ca, err := settings.readCA()
		switch {
		case err != nil:
			return err
		case old != nil && reflect.DeepEqual(old.settings, settings) && bytes.Equal(old.ca, ca):
			return nil
		}
		if next, err = newExporter(settings, ca, p.gateway.Logger()); err != nil {
			return err
		}
		plan.Abort = append(plan.Abort, func() { next.close(context.Background()) })
		if what = "tracing added"; old != nil {
			what = "tracing changed"
		}
	}
	plan.Changes = append(plan.Changes, what)
	plan.Swap = append(plan.Swap, func() { p.current.Store(next) })
	if old != nil {
		plan.Retired = append(plan.Retired, &extend.Retired{
			Kind: "tracing", Name: "spans", Protocol: "otlp", Sessions: "spans", Active: old.waiting,
			Drain: func(ctx context.Context) error { old.close(ctx); return nil },
		})
	}
	return nil
}

// Dialer implements extend.Part.
func (p *part) Dialer(*config.Upstream) (extend.Dialer, bool) { return extend.Dialer{}, false }

// Carrier implements extend.Part.
func (p *part) Carrier(*config.Upstream) (listener string, ok bool) { return "", false }

// Retreats implements extend.Part.
func (p *part) Retreats(*config.Upstream) bool { return false }

// Registers implements extend.Part.
func (p *part) Registers() []extend.Register { return nil }

// Drain implements extend.Part. Requests have ended before last.
func (p *part) Drain(ctx context.Context, last bool) error {
	if e := p.current.Load(); e != nil && last {
		e.close(ctx)
	}
	return nil
}

// Show implements extend.Part.
func (p *part) Show() []admin.Addition {
	var rows []Status
	if e := p.current.Load(); e != nil {
		rows = append(rows, e.status())
	}
	return []admin.Addition{report.Of(rows)}
}
