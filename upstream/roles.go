package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool"
)

// An Upstream with a Target asks each endpoint for its role repeatedly. Only the answers decide. What a connection
// shows, such as a login or a refused write, is only a reason to ask again at once, so that observations of different
// kinds need not be put in order. An endpoint without a role that the Target accepts has no pools: its idle connections
// are closed, its leases are closed when they are released, and its waiters try another endpoint.

const (
	// roleInterval is the time from one question to the next; a quarter of it while an acquire waits for a role, and
	// after an answer that did not come.
	roleInterval = time.Second
	// roleGap is the least time from one question to the next, whatever the reason for it.
	roleGap = 100 * time.Millisecond
	// roleTimeout bounds a question while the role is known. Otherwise the answer may take as long as a login.
	roleTimeout = 2 * time.Second
	// roleSilence is how long an endpoint may be silent before its role is unknown: a busy server takes its time.
	roleSilence = 5 * time.Second
)

// errRole is the error of an open that has reached a server with another role than its endpoint was known to have.
var errRole = errors.New("the server's role has changed")

// roleState is what an endpoint knows about its role.
type roleState struct {
	now   atomic.Int32  // a Role
	anew  atomic.Bool   // the next question needs a new connection
	poke  chan struct{} // a question is due at once; capacity 1
	fresh atomic.Bool   // no question has ended yet
	fit   atomic.Bool   // the Target accepts the role

	// The fields below are guarded by endpoint.mu.
	target   Target
	why      error         // why the last question had no answer
	answered time.Time     // when the endpoint last answered
	next     chan struct{} // closed when the next question to begin has ended; nil = no caller waits for that
	stop     context.CancelFunc
	over     chan struct{} // closed when the goroutine has ended; nil = none runs
}

// role returns what is known.
func (e *endpoint[T]) role() Role { return Role(e.roles.now.Load()) }

// setTarget sets the Target, before the set with it is published, and allows pools at an endpoint that it accepts now.
func (e *endpoint[T]) setTarget(t Target) {
	e.mu.Lock()
	r := &e.roles
	if t == TargetAny || r.target == TargetAny { // else it is known
		r.why = nil
		r.now.Store(int32(UnknownRole))
		r.fresh.Store(t != TargetAny)
	}
	r.target = t
	fit := t.rank(e.role()) != refused
	was := r.fit.Swap(fit)
	e.updateUsable()
	e.mu.Unlock()
	if fit && !was {
		e.reopen()
	}
}

// forgetRoles makes all roles unknown, as they were at first.
func (u *Upstream[T]) forgetRoles() {
	all := u.set.Load().all
	for _, e := range all {
		e.forgetRole()
	}
	u.publish(func(s *set[T]) *set[T] {
		p := s.plan
		p.decided = false
		return newSet(p, s.all, s.ring, s.turns)
	})
	for _, e := range all {
		e.shed()
	}
}

// forgetRole is forgetRoles for one endpoint, before the set is renewed.
func (e *endpoint[T]) forgetRole() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := &e.roles; r.target != TargetAny {
		r.why = nil
		r.now.Store(int32(UnknownRole))
		r.fresh.Store(true)
		r.fit.Store(false)
		e.updateUsable()
	}
}

// startAsking starts to ask for the role, unless the goroutine runs already or the Target is TargetAny.
func (e *endpoint[T]) startAsking() {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.roles
	if r.target == TargetAny || r.over != nil || e.closed {
		return
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	r.over, r.answered = make(chan struct{}), time.Now()
	go e.askRole(ctx, e.asker(), r.over)
}

// stopAsking ends the goroutine, waits for it, and wakes the callers that wait for an answer.
func (e *endpoint[T]) stopAsking() {
	e.mu.Lock()
	r := &e.roles
	stop, over := r.stop, r.over
	e.mu.Unlock()
	if over == nil {
		return
	}
	stop()
	<-over
	e.mu.Lock()
	r.over = nil
	next := r.next
	r.next = nil
	e.mu.Unlock()
	if next != nil {
		close(next)
	}
}

// askRole asks at once, and then repeatedly until ctx ends.
func (e *endpoint[T]) askRole(ctx context.Context, asker RoleAsker, over chan<- struct{}) {
	defer close(over)
	defer asker.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-e.roles.poke:
		case <-ctx.Done():
			return
		}
		if e.paused.Load() { // the server gets no connections; Resume asks again
			asker.Close()
			continue
		}
		e.mu.Lock()
		next := e.roles.next
		e.roles.next = nil
		e.mu.Unlock()
		again := e.askOnce(ctx, asker)
		if next != nil {
			close(next)
		}
		timer.Reset(again)
		sleep(ctx, roleGap)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// askOnce asks, and returns the time to the next question.
func (e *endpoint[T]) askOnce(ctx context.Context, asker RoleAsker) (again time.Duration) {
	e.mu.Lock()
	limit := e.trialTime
	e.mu.Unlock()
	if e.role() != UnknownRole {
		limit = min(limit, roleTimeout)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	role, err := callAsker(within, asker, e.roles.anew.Swap(false))
	if ctx.Err() != nil {
		return 0
	}
	expired := silent(err, within.Err() != nil)
	if err != nil && !shortage(err) {
		role = e.unanswered(err, expired)
	} else if err != nil {
		role = e.role()
	}
	e.learn(role, err)
	if expired || e.waiting.Load() > 0 {
		return roleInterval / againSooner
	}
	return roleInterval
}

// callAsker asks; a panic is an error.
func callAsker(ctx context.Context, asker RoleAsker, anew bool) (r Role, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("asking for the role panicked: %v", p)
		}
	}()
	return asker.Ask(ctx, anew)
}

// unanswered returns the role of an endpoint that has not reported it.
func (e *endpoint[T]) unanswered(err error, expired bool) Role {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.roles
	switch {
	case errors.Is(err, ErrTenant):
		r.answered = time.Now()
	case !expired || time.Since(r.answered) >= roleSilence:
		return UnknownRole
	}
	return e.role()
}

// learn applies the result of a question.
func (e *endpoint[T]) learn(role Role, err error) {
	e.mu.Lock()
	r := &e.roles
	was := e.role()
	first := r.fresh.Swap(false)
	news := first || was != role || refuses(r.why) != refuses(err)
	if r.why = err; err == nil {
		r.answered = time.Now()
	} else {
		e.lastError, e.lastFailed = err.Error(), time.Now()
	}
	r.now.Store(int32(role))
	fit := r.target.rank(role) != refused
	fitted := r.fit.Swap(fit)
	if was == UnknownRole && role != UnknownRole && err == nil { // newer evidence than failures in use
		e.ejector.clear()
		e.stopReadmit()
	}
	news = e.updateUsable() || news
	e.mu.Unlock()
	if fit && !fitted {
		e.reopen()
	}
	if news {
		e.changed()
	}
	if !fit && fitted {
		e.shed()
	}
	switch {
	case was == role && (!first || err == nil):
	case role == UnknownRole:
		e.log.Warn("endpoint's role is unknown", "was", was.String(), "error", err)
	default:
		e.log.Info("endpoint's role", "role", role.String(), "was", was.String())
	}
}

// doubt makes askRole ask at once, over a new connection.
func (e *endpoint[T]) doubt() {
	e.roles.anew.Store(true)
	e.ask()
}

// ask makes askRole ask at once.
func (e *endpoint[T]) ask() {
	select {
	case e.roles.poke <- struct{}{}:
	default:
	}
}

// askAnew is doubt, and returns a channel that is closed when a question that began after the call has ended.
func (e *endpoint[T]) askAnew() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := e.roles.next
	if next == nil {
		next = make(chan struct{})
	}
	if e.roles.over == nil {
		close(next)
		return next
	}
	e.roles.next = next
	e.doubt()
	return next
}

// Doubt asks the endpoint with an address for its role again, at once, because something, such as a refused write,
// contradicts the known role. It does not wait, and does nothing with TargetAny.
func (u *Upstream[T]) Doubt(endpoint string) {
	s := u.set.Load()
	if s.target == TargetAny {
		return
	}
	for _, e := range s.all {
		if e.addr == endpoint {
			e.doubt()
		}
	}
}

// open opens a connection for a pool, and refuses it if the endpoint turns out to have another role by now.
func (t *Tenant[T]) open(ctx context.Context, e *endpoint[T]) (v T, err error) {
	if v, err = e.open(ctx, t.opening()); err != nil {
		return v, err
	}
	if err = t.up.compare(ctx, e, v); err != nil {
		t.cfg.Close(v)
		var none T
		return none, err
	}
	return v, nil
}

// compare returns an error if a new connection shows another role than its endpoint is known to have, or if the Target
// does not accept the endpoint any more.
func (u *Upstream[T]) compare(ctx context.Context, e *endpoint[T], v T) (err error) {
	known, seen := e.role(), UnknownRole
	if u.cfg.RoleOf != nil && known != UnknownRole {
		if seen, err = u.cfg.RoleOf(ctx, v); err != nil {
			return err
		}
	}
	switch {
	case seen != UnknownRole && (seen == Standby) != (known == Standby):
		e.doubt()
		return fmt.Errorf("endpoint %s: %w: it was a %s, and the login says %s", e.addr, errRole, known, seen)
	case !e.roles.fit.Load():
		return fmt.Errorf("endpoint %s: %w: %s", e.addr, errRole, known)
	}
	return nil
}

// reopen allows pools at an endpoint that is accepted, and starts to fill the Upstream's own.
func (u *Upstream[T]) reopen(e *endpoint[T]) {
	u.tenancy.Lock()
	if e.roles.fit.Load() {
		e.pools.shut = false
	}
	u.tenancy.Unlock()
	if u.own.cfg.Open != nil {
		_, _ = u.own.join(e)
	}
}

// shed closes the pools at an endpoint that is not accepted, and forgets them once their leases are released. No pool
// is made there until reopen.
func (u *Upstream[T]) shed(e *endpoint[T]) {
	u.tenancy.Lock()
	if e.roles.fit.Load() { // since a moment ago
		u.tenancy.Unlock()
		return
	}
	e.pools.shut = true
	var list []site[T]
	for _, s := range e.pools.list {
		if s.tenant.at(e) == s.pool { // else it was shed before
			s.tenant.put(e.number, site[T]{})
			list = append(list, s)
		}
	}
	u.tenancy.Unlock()
	if len(list) == 0 {
		return
	}
	u.tasks.Go(func() {
		for _, s := range list {
			s.pool.Close()
		}
		for _, s := range list {
			if s.pool.Drain(u.ctx) == nil {
				u.forget(s)
			}
		}
	})
}

// roleWait is the part of an acquire that waits for an endpoint with a role that the Target accepts.
type roleWait struct {
	used time.Duration // of pool.Limits.AcquireTimeout, without pauses
}

// left returns how much time the limit of the moment leaves; limited is false without a limit.
func (w *roleWait) left(p plan) (d time.Duration, limited bool) {
	return max(p.acquireTimeout-w.used, 1), p.acquireTimeout > 0
}

// until waits until is reports true for the present set, also is closed, ctx ends (the error is its error), the time is
// used up (pool.ErrTimeout), or the Upstream is closed (pool.ErrClosed). If too many wait already, it does not wait
// (pool.ErrTooManyWaiters). Endpoints are asked more often meanwhile.
func (t *Tenant[T]) until(ctx context.Context, w *roleWait, also <-chan struct{}, is func(*set[T]) bool) (err error) {
	u := t.up
	if is(u.set.Load()) {
		return nil
	}
	if !t.BeginWait() {
		return pool.ErrTooManyWaiters
	}
	defer t.EndWait()
	if u.waiting.Add(1) == 1 {
		u.askAll()
	}
	defer u.waiting.Add(-1)
	fiber.Block(func() {
		for {
			s := u.set.Load()
			if is(s) {
				return
			}
			left, limited := w.left(s.plan)
			if ended, failed := w.wait(ctx, u.ctx, s.replaced, also, left, limited && !s.paused()); ended {
				err = failed
				return
			}
		}
	})
	return err
}

// askAll makes all endpoints ask for their roles at once.
func (u *Upstream[T]) askAll() {
	for _, e := range u.set.Load().all {
		e.ask()
	}
}

// wait is one wait of until; ended says that it is the last.
func (w *roleWait) wait(ctx, life context.Context, replaced, also <-chan struct{}, left time.Duration, limited bool) (ended bool, err error) {
	var late <-chan time.Time
	if limited {
		began, timer := time.Now(), time.NewTimer(left)
		defer func() {
			timer.Stop()
			w.used += time.Since(began)
		}()
		late = timer.C
	}
	select {
	case <-replaced:
		return false, nil
	case <-also:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	case <-life.Done():
		return true, pool.ErrClosed
	case <-late:
		return true, pool.ErrTimeout
	}
}

// paused reports whether the Upstream is paused.
func (s *set[T]) paused() bool { return len(s.all) > 0 && s.all[0].paused.Load() }

// refuses reports whether an endpoint's answer is a permanent refusal.
func refuses(why error) bool { return errors.Is(why, ErrTenant) && !errors.Is(why, ErrPassing) }

// refusals returns the answers of the endpoints if all of them permanently refuse to report their roles (ErrTenant),
// else nil.
func (s *set[T]) refusals() (all []EndpointError) {
	if s.paused() { // the answers are from before the pause
		return nil
	}
	for _, e := range s.all {
		e.mu.Lock()
		why := e.roles.why
		e.mu.Unlock()
		if e.role() != UnknownRole || !refuses(why) {
			return nil
		}
		all = append(all, EndpointError{e.addr, why})
	}
	return all
}

// awaitRole waits for an endpoint with a role that the Target accepts. It does not wait if all refuse to report their
// roles, because then the login has to be changed.
func (t *Tenant[T]) awaitRole(ctx context.Context, key string, w *roleWait) (e *endpoint[T], err error) {
	var refusals []EndpointError
	u := t.up
	err = t.until(ctx, w, nil, func(s *set[T]) bool {
		e = s.pick(key)
		if e == nil && s.target != TargetAny {
			refusals = s.refusals()
		}
		return e != nil || s.target == TargetAny || refusals != nil
	})
	switch {
	case err != nil:
		return nil, u.roleError(err)
	case e == nil && refusals != nil:
		return nil, &Error{Upstream: u.cfg.Name, Causes: refusals}
	case e == nil: // an Update has removed the Target and every endpoint
		return nil, &Error{Upstream: u.cfg.Name}
	}
	return e, nil
}

// roleError returns the error of an acquire that no endpoint has the role for.
func (u *Upstream[T]) roleError(err error) *Error {
	s := u.set.Load()
	failure := &Error{Upstream: u.cfg.Name, Target: s.target, Ended: err}
	for _, e := range s.all {
		e.mu.Lock()
		failure.Roles = append(failure.Roles, EndpointRole{e.addr, e.role(), e.roles.why})
		e.mu.Unlock()
	}
	return failure
}

// maxConfirmed is how often an acquire may fail at endpoints that have confirmed their roles meanwhile.
const maxConfirmed = 2

// acquireAfterFailover continues an acquire that has failed at every endpoint whose role the Target accepts: one of
// them may be losing its role. The endpoints are asked again, and the acquire begins again at an endpoint that is
// accepted then. All of it takes no longer than pool.Limits.AcquireTimeout.
func (t *Tenant[T]) acquireAfterFailover(ctx context.Context, key string, failed *Error, n Narrow) (Lease[T], error) {
	u := t.up
	w := &roleWait{used: u.withoutPause(failed.waited())}
	for tries := 0; ; tries++ {
		if tries >= maxConfirmed || ctx.Err() != nil || !failed.gone() {
			return Lease[T]{}, failed
		}
		e, err := t.confirm(ctx, key, failed, w)
		switch {
		case err != nil:
			return Lease[T]{}, u.roleError(err)
		case e == nil:
			tries = -1
			if e, err = t.awaitRole(ctx, key, w); err != nil {
				return Lease[T]{}, err
			}
		default:
			if p := t.at(e); p != nil {
				p.Retry()
			}
		}
		l, further := t.acquireIn(ctx, key, e, n, w)
		if further == nil {
			return l, nil
		}
		failed = further
	}
}

// acquireIn is acquireFrom, without acquireAfterFailover, in the time that is left.
func (t *Tenant[T]) acquireIn(ctx context.Context, key string, e *endpoint[T], n Narrow, w *roleWait) (Lease[T], *Error) {
	if left, limited := w.left(t.up.set.Load().plan); limited && !e.paused.Load() {
		began := time.Now()
		defer func() { w.used += time.Since(began) }()
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	l, err := t.acquireWithin(ctx, e, n.Wait)
	if err == nil {
		return l, nil
	}
	return t.tryOthers(ctx, key, e, err, n)
}

// confirm waits until the endpoints that could not be connected to have been asked for their roles, or until there is
// another one. It returns the endpoint to try then, nil = none has the role.
func (t *Tenant[T]) confirm(ctx context.Context, key string, failed *Error, w *roleWait) (e *endpoint[T], err error) {
	tried := func(e *endpoint[T]) bool {
		return slices.ContainsFunc(failed.Causes, func(c EndpointError) bool { return c.Endpoint == e.addr })
	}
	var answers []<-chan struct{}
	for _, e := range t.up.set.Load().fit {
		if tried(e) {
			answers = append(answers, e.askAnew())
		}
	}
	for _, answer := range answers {
		err = t.until(ctx, w, answer, func(s *set[T]) bool {
			e = s.pick(key)
			return e == nil || !tried(e)
		})
		if err != nil || e == nil || !tried(e) {
			return e, err
		}
	}
	return t.up.set.Load().pick(key), nil
}
