package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headpond/headpond/upstream"
)

const (
	listTimeout = 30 * time.Second
	// A watch is asked to last this long, at random up to twice as long: thousands of
	// nodes must not come back in the same moment.
	watchLife = 5 * time.Minute
	// watchGrace is how much longer a watch may last until it counts as hung.
	watchGrace = 30 * time.Second
	// shortWatch is the least duration of a watch that its server ends in good order. Otherwise a
	// server that ends watches at once would be asked without end.
	shortWatch = time.Second
	// The pause after a failure doubles from the least to the most, half of it at random.
	leastPause = 200 * time.Millisecond
	mostPause  = 30 * time.Second
)

var (
	// errShort is why there is a pause after a watch that ended well.
	errShort = errors.New("the API server ends the watch at once")
	// errForgotten says that a list is needed, which is no failure yet.
	errForgotten = errors.New("the watch cannot be continued")
)

// watcher is one run of Watch. It belongs to one goroutine.
type watcher struct {
	*Source
	report func([]upstream.Endpoint, error) error

	client  *client          // nil = none could be made yet
	all     map[string]slice // by name
	listed  bool             // all is the API's state at version
	version string           // of the last thing heard; "0" before
	heard   bool             // the round's watch has heard something, or has lasted and ended well
	lasted  bool             // the round's watch ended well, and not at once
	failing bool             // the last report was an error
	told    []upstream.Endpoint
	unkept  bool // the reported set is not in the cache
}

// Watch implements upstream.Source. It may run once at a time. A failure that the
// next attempt repairs, at once, is not reported: a watch ends whenever its API
// server does.
func (s *Source) Watch(ctx context.Context, report func([]upstream.Endpoint, error) error) {
	w := &watcher{Source: s, report: report, version: "0"}
	defer func() {
		if w.client != nil {
			w.client.http.CloseIdleConnections()
		}
	}()
	w.begin()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		w.heard, w.lasted = false, false
		err := w.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if w.heard {
			failures = 0
		}
		if err == nil {
			failures = 0
			timer.Reset(0)
			continue
		}
		if failures++; failures > 1 && !errors.Is(err, errForgotten) {
			w.tell(nil, err)
		}
		timer.Reset(pause(failures, err))
	}
}

// pause is how long to wait after a number of failures in a row, the last of which was err.
func pause(failures int, err error) time.Duration {
	d := min(leastPause<<min(failures-1, 10), mostPause)
	d = d/2 + rand.N(d/2)
	var api *apiError
	if errors.As(err, &api) && api.retryAfter > 0 {
		d = max(d, min(api.retryAfter, mostPause)) // the server has said when
	}
	return d
}

// begin reports the set known when the last run ended.
func (w *watcher) begin() {
	set, err := w.kept()
	if err != nil {
		w.tell(nil, err)
	}
	priority := 0
	if len(set) > 0 {
		priority = bootstrapped // all kept endpoints may have been replaced since
	}
	for _, address := range w.cfg.Bootstrap {
		set = append(set, upstream.Endpoint{Address: address, Priority: priority, Metadata: map[string]string{"from": "bootstrap"}})
	}
	if len(set) > 0 {
		w.tell(ordered(set), nil)
	}
}

// round lists the slices, if need be, and watches them until the watch ends.
func (w *watcher) round(ctx context.Context) error {
	c, err := w.connect(w.client)
	if err != nil {
		return err
	}
	w.client = c
	if !w.listed {
		if err := w.relist(ctx); err != nil {
			return err
		}
	}
	err = w.follow(ctx)
	switch {
	case gone(err):
		w.listed, w.version = false, "" // not from the API server's cache, which may be as old
		return fmt.Errorf("%w: %w", errForgotten, err)
	case err != io.EOF: //nolint:errorlint // follow returns nothing that wraps it
	case w.lasted:
		return nil
	default: // also after a change: otherwise it would be asked without end
		return errShort
	}
	return err
}

// relist takes the list in place of everything known.
func (w *watcher) relist(ctx context.Context) error {
	l, err := w.list(ctx, w.client, w.version)
	if gone(err) {
		w.version = ""
	}
	if err != nil {
		return err
	}
	w.all = make(map[string]slice, len(l.Items))
	for _, sl := range l.Items {
		w.all[sl.Metadata.Name] = sl
	}
	w.listed, w.version = true, l.Metadata.ResourceVersion
	w.update(true)
	return nil
}

// follow applies changes until the watch ends: io.EOF when the server ends it in
// good order.
func (w *watcher) follow(ctx context.Context) error {
	life := watchLife + rand.N(watchLife)
	ctx, cancel := context.WithTimeout(ctx, life+watchGrace)
	defer cancel()
	stream, err := w.watch(ctx, w.client, w.version, life)
	if err != nil {
		return err
	}
	defer func() { _ = stream.body.Close() }()
	began := time.Now()
	if w.failing || w.unkept {
		w.update(true)
	}
	for {
		sl, kind, err := stream.next()
		if errors.Is(err, io.EOF) {
			w.lasted = time.Since(began) >= shortWatch
			w.heard = w.heard || w.lasted
			return io.EOF
		}
		if err != nil {
			return fmt.Errorf("watch of service %s: %w", w.service(), err)
		}
		w.heard = true
		if sl.Metadata.ResourceVersion != "" {
			w.version = sl.Metadata.ResourceVersion
		}
		switch kind {
		case eventAdded, eventModified:
			w.all[sl.Metadata.Name] = sl
		case eventDeleted:
			delete(w.all, sl.Metadata.Name)
		default: // a bookmark
			continue
		}
		w.update(false)
	}
}

// update reports the set of all slices, if it has changed or always is set.
func (w *watcher) update(always bool) {
	set, err := w.endpointsOf(w.all)
	if err != nil {
		w.tell(nil, err)
		return
	}
	if always || w.failing || !slices.EqualFunc(set, w.told, same) {
		w.tell(set, nil)
	}
}

func same(a, b upstream.Endpoint) bool {
	return a.Address == b.Address && a.Priority == b.Priority && a.Zone == b.Zone && maps.Equal(a.Metadata, b.Metadata)
}

// tell reports a set or an error. A set of the API is kept; a failure to keep it is reported with
// the set.
func (w *watcher) tell(set []upstream.Endpoint, err error) {
	if err == nil && w.listed && (w.unkept || !slices.EqualFunc(set, w.told, same)) {
		err = w.keep(set)
		w.unkept = err != nil
	}
	err = w.report(set, err)
	w.failing = err != nil
	if len(set) > 0 && (err == nil || w.unkept) {
		w.told = set
	}
}
