package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Source reports the endpoints of an Upstream, and their changes.
type Source interface {
	// Watch looks for endpoints until ctx ends, and then returns. It calls report with the whole set when it first
	// knows the set, and at each change; it may report the same set again. Endpoints that are missing from the new set
	// are removed; other endpoints are not affected. If Watch cannot find the set, it calls report with an error: the
	// Upstream keeps the last set, and shows the error until a set is reported without one. With a set and an error,
	// some endpoints of the set are old. An empty set is an error, too, because usually it means that the service which
	// should know the endpoints is down. report does not keep the slice. It returns the error, or its own if it refuses
	// the set, and must be called from one goroutine at a time.
	Watch(ctx context.Context, report func(set []Endpoint, err error) error)
	// String names the source for operators, such as "dns api.internal:6443".
	String() string
}

// SourceStatus is the state of a Source's reports. It is zero without a Source.
type SourceStatus struct {
	Name         string    // Source.String
	Updated      time.Time // time of the last report with a set; zero: never
	Changed      time.Time // time of the last change of the set; zero: never
	FailingSince time.Time // zero: the last report was a set
	LastError    string    // error of the last report, if it was one
	// Counters of this Upstream, all its sources together.
	Failed                  uint64 // reports with an error or an invalid set
	Added, Removed, Altered uint64 // numbers of endpoints
}

// errNoEndpoints is the error of an empty set.
var errNoEndpoints = errors.New("no endpoints")

// watch is a Source that is being watched.
type watch struct {
	source   Source
	cancel   context.CancelFunc
	answered chan struct{} // closed after the first report
	err      error         // of the last report; guarded by Upstream.mu
}

// follow starts to watch source in place of the previous one. The caller holds updating.
func (u *Upstream[T]) follow(source Source) {
	if u.watch != nil {
		if u.watch.source == source {
			return
		}
		u.watch.cancel()
		u.watch.answer()
		u.setWatch(nil)
	}
	if source == nil {
		return
	}
	ctx, cancel := context.WithCancel(u.ctx)
	w := &watch{source: source, cancel: cancel, answered: make(chan struct{})}
	u.setWatch(w)
	u.tasks.Go(func() { u.run(ctx, w) })
}

// Freeze stops the Source before a drain; the endpoints stay as they are. Otherwise a Source that uses this Upstream
// itself would delay the end of its sessions.
func (u *Upstream[T]) Freeze() {
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.watch != nil {
		u.watch.cancel()
		u.watch.answer()
	}
}

// run watches the Source until ctx ends, on its own goroutine.
func (u *Upstream[T]) run(ctx context.Context, w *watch) {
	defer func() {
		if p := recover(); p != nil {
			u.cfg.Logger.Error("the source of endpoints panicked and is not asked any more", "upstream", u.cfg.Name, "source", w.source.String(), "panic", p)
			_ = u.reported(w, nil, fmt.Errorf("panicked: %v", p))
		}
	}()
	w.source.Watch(ctx, func(set []Endpoint, err error) error { return u.reported(w, set, err) })
}

// setWatch replaces the source and keeps the counters.
func (u *Upstream[T]) setWatch(w *watch) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.watch = w
	u.sourceStatus = SourceStatus{Failed: u.sourceStatus.Failed, Added: u.sourceStatus.Added, Removed: u.sourceStatus.Removed, Altered: u.sourceStatus.Altered}
	if w != nil {
		u.sourceStatus.Name = w.source.String()
	}
}

// reported handles a Source's report.
func (u *Upstream[T]) reported(w *watch, list []Endpoint, err error) error {
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.closed || u.watch != w {
		return nil
	}
	defer w.answer()
	if err == nil && len(list) == 0 {
		err = errNoEndpoints
	}
	if len(list) > 0 {
		bad := verifyEndpoints(list)
		if bad == nil {
			bad = u.apply(u.settings, list, bySettings)
		}
		err = cmp.Or(bad, err)
	}
	u.note(w, err)
	return err
}

// answer wakes the callers that wait for the first report. The caller holds updating.
func (w *watch) answer() {
	select {
	case <-w.answered:
	default:
		close(w.answered)
	}
}

// note records the result of a report.
func (u *Upstream[T]) note(w *watch, err error) {
	now := time.Now()
	u.mu.Lock()
	began, since := w.err == nil && err != nil, u.sourceStatus.FailingSince
	w.err = err
	if err != nil {
		u.sourceStatus.Failed++
		u.sourceStatus.LastError = err.Error()
		if began {
			u.sourceStatus.FailingSince = now
		}
	} else {
		u.sourceStatus.Updated, u.sourceStatus.FailingSince, u.sourceStatus.LastError = now, time.Time{}, ""
	}
	u.mu.Unlock()
	switch {
	case began:
		u.cfg.Logger.Warn("the source of endpoints fails, the last set is kept", "upstream", u.cfg.Name, "source", w.source.String(),
			"endpoints", len(u.set.Load().all), "error", err)
	case err == nil && !since.IsZero():
		u.cfg.Logger.Info("the source of endpoints works again", "upstream", u.cfg.Name, "source", w.source.String(),
			"failed_for", now.Sub(since).Round(time.Millisecond))
	}
}

// difference holds the addresses that a change of the set concerns.
type difference struct{ added, removed, changed []string }

func (d difference) none() bool { return len(d.added)+len(d.removed)+len(d.changed) == 0 }

// compare returns the difference of two sets.
func compare(before, after []Endpoint) (d difference) {
	was := make(map[string]Endpoint, len(before))
	for _, e := range before {
		was[e.Address] = e
	}
	for _, e := range after {
		old, stays := was[e.Address]
		switch {
		case !stays:
			d.added = append(d.added, e.Address)
		case !old.same(e):
			d.changed = append(d.changed, e.Address)
		}
		delete(was, e.Address)
	}
	for _, e := range before {
		if _, gone := was[e.Address]; gone {
			d.removed = append(d.removed, e.Address)
		}
	}
	return d
}

func (e Endpoint) same(o Endpoint) bool {
	return e.Address == o.Address && max(e.Weight, 1) == max(o.Weight, 1) && e.Priority == o.Priority && e.Zone == o.Zone && maps.Equal(e.Metadata, o.Metadata)
}

// logDifference logs a difference in one line.
func (u *Upstream[T]) logDifference(d difference, from Source, by cause, n int) {
	now := time.Now()
	u.mu.Lock()
	u.sourceStatus.Added += uint64(len(d.added))
	u.sourceStatus.Removed += uint64(len(d.removed))
	u.sourceStatus.Altered += uint64(len(d.changed))
	u.sourceStatus.Changed = now
	u.mu.Unlock()
	args := []any{"upstream", u.cfg.Name}
	switch {
	case by == byOperator:
		args = append(args, "by", "operator")
	case from != nil:
		args = append(args, "source", from.String())
	}
	for _, c := range []struct {
		key  string
		list []string
	}{{"added", d.added}, {"removed", d.removed}, {"changed", d.changed}} {
		if len(c.list) > 0 {
			args = append(args, c.key, brief(c.list))
		}
	}
	u.cfg.Logger.Info("endpoints changed", append(args, "endpoints", n)...)
}

// maxNamed bounds the addresses in one line of the log.
const maxNamed = 20

// brief joins addresses up to maxNamed, and counts the others.
func brief(list []string) string {
	if len(list) > maxNamed {
		list = append(slices.Clone(list[:maxNamed]), fmt.Sprintf("and %d more", len(list)-maxNamed))
	}
	return strings.Join(list, " ")
}
