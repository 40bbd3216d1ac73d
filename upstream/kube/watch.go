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
	// watchLife is the duration requested for a watch, plus a random part of up to the same: thousands of nodes must
	// not reconnect at the same moment.
	watchLife = 5 * time.Minute
	// watchGrace is how long after its end a watch counts as hung.
	watchGrace = 30 * time.Second
	// shortWatch is the least duration of a watch that counts as successful: a server that ends each watch at once must
	// not be asked again and again.
	shortWatch = time.Second
	// minPause and maxPause bound the pause after a failure, which doubles; half of it is random.
	minPause = 200 * time.Millisecond
	maxPause = 30 * time.Second
)

var (
	// errShort is the reason for a pause after a watch that ended without an error.
	errShort = errors.New("the API server ends the watch at once")
	// errForgotten says that a list is needed, which is not a failure yet.
	errForgotten = errors.New("the watch cannot be continued")
)

// watcher is the state of one run of Watch. It belongs to one goroutine.
type watcher struct {
	*Source
	report func([]upstream.Endpoint, error) error

	client    *client          // nil = not made yet
	all       map[string]slice // by name
	listed    bool             // all is the API's state as of version
	version   string           // last version received; "0" = none yet
	received  bool             // the round's watch has received something, or has lasted and ended without an error
	lasted    bool             // the round's watch has lasted and ended without an error
	failing   bool             // the last report was an error
	delivered []upstream.Endpoint
	unkept    bool // the reported set is not in the cache file
}

// Watch implements upstream.Source. It may run once at a time. A failure that the next attempt repairs at once is not
// reported, because a watch ends whenever its API server does.
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
		w.received, w.lasted = false, false
		err := w.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if w.received {
			failures = 0
		}
		if err == nil {
			failures = 0
			timer.Reset(0)
			continue
		}
		if failures++; failures > 1 && !errors.Is(err, errForgotten) {
			w.deliver(nil, err)
		}
		timer.Reset(pause(failures, err))
	}
}

// pause returns how long to wait after a number of consecutive failures, the last of which was err.
func pause(failures int, err error) time.Duration {
	d := min(minPause<<min(failures-1, 10), maxPause)
	d = d/2 + rand.N(d/2)
	var api *apiError
	if errors.As(err, &api) && api.retryAfter > 0 {
		d = max(d, min(api.retryAfter, maxPause)) // the server has named a time
	}
	return d
}

// begin reports the set that was known at the end of the last run.
func (w *watcher) begin() {
	set, err := w.kept()
	if err != nil {
		w.deliver(nil, err)
	}
	priority := 0
	if len(set) > 0 {
		priority = bootstrapped // all addresses in the cache may be outdated
	}
	for _, address := range w.cfg.Bootstrap {
		set = append(set, upstream.Endpoint{Address: address, Priority: priority, Metadata: map[string]string{"from": "bootstrap"}})
	}
	if len(set) > 0 {
		w.deliver(ordered(set), nil)
	}
}

// round lists the slices, if necessary, and watches them until the watch ends.
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
		w.listed, w.version = false, "" // so that the list does not come from the API server's cache, which may be outdated, too
		return fmt.Errorf("%w: %w", errForgotten, err)
	case err != io.EOF: //nolint:errorlint // follow returns nothing that wraps it
	case w.lasted:
		return nil
	default: // also after a change, so that the server is not asked again and again
		return errShort
	}
	return err
}

// relist replaces all that is known by a list.
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

// follow applies changes until the watch ends. It returns io.EOF if the server ended it without an error.
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
			w.received = w.received || w.lasted
			return io.EOF
		}
		if err != nil {
			return fmt.Errorf("watch of service %s: %w", w.service(), err)
		}
		w.received = true
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

// update reports the set of all slices if it has changed, or if always is set.
func (w *watcher) update(always bool) {
	set, err := w.endpointsOf(w.all)
	if err != nil {
		w.deliver(nil, err)
		return
	}
	if always || w.failing || !slices.EqualFunc(set, w.delivered, same) {
		w.deliver(set, nil)
	}
}

func same(a, b upstream.Endpoint) bool {
	return a.Address == b.Address && a.Priority == b.Priority && a.Zone == b.Zone && maps.Equal(a.Metadata, b.Metadata)
}

// deliver reports a set or an error. It writes a set to the cache file; if that fails, it reports the error with the set.
func (w *watcher) deliver(set []upstream.Endpoint, err error) {
	if err == nil && w.listed && (w.unkept || !slices.EqualFunc(set, w.delivered, same)) {
		err = w.keep(set)
		w.unkept = err != nil
	}
	err = w.report(set, err)
	w.failing = err != nil
	if len(set) > 0 && (err == nil || w.unkept) {
		w.delivered = set
	}
}
