package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// recent is how long a past refusal or failure counts as trouble: long enough for an operator who was alerted to see
// it.
const recent = time.Minute

// States of an endpoint.
const (
	stateHealthy   = "healthy"
	stateFailing   = "failing" // a failure within the last minute, but still in; a failed open no longer counts once another one has succeeded
	stateEjected   = "ejected"
	stateUnhealthy = "unhealthy"
	stateDrained   = "drained" // by an operator
	stateRemoved   = "removed" // by a reload, its source or an operator
)

// state returns an endpoint's state in one word.
func (e *Endpoint) state(now time.Time) string {
	switch {
	case e.Removed && e.Override == string(upstream.Drained):
		return stateDrained
	case e.Removed:
		return stateRemoved
	case !e.Healthy:
		return stateUnhealthy
	case e.Ejected:
		return stateEjected
	case e.Failures > 0 && within(e.LastFailed, now):
		return stateFailing
	}
	return stateHealthy
}

// grave lists the listener errors that an operator must act on; other errors concern single clients or one endpoint.
var grave = []struct{ reason, what string }{
	{listener.ReasonDiskFull, "a database file cannot be written, its disk is full"},
	{listener.ReasonStorage, "a database file is damaged, or its disk fails; the log has its path"},
	{listener.ReasonInternal, "a session, or accepting a connection, panicked, which is a bug; the log has the stack"},
	{listener.ReasonAccept, "clients wait, because connections cannot be accepted, mostly for lack of open files (ulimit -n, LimitNOFILE); the log says why"},
}

// within reports whether a time is recent.
func within(t *time.Time, now time.Time) bool { return t != nil && now.Sub(*t) < recent }

// troubles returns sentences about all problems: a refused reload, limits that were reached within the
// last minute, and each listener, upstream, endpoint and row of an addition that fails.
func troubles(s *Status, additions []Addition, now time.Time) []string {
	lines := []string{}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if e := s.Reloads.LastError; e != "" {
		add("the last reload was refused, the old configuration keeps running: %s", e)
	}
	if e := s.Log.Error; e != "" {
		add("the log cannot be written, lines missing so far: %d: %s", s.Log.SlowReader+s.Log.DiskFull+s.Log.WriteFailed, e)
	}
	for _, l := range s.Listeners {
		switch {
		case l.Active >= l.MaxConns && l.Queued > 0:
			add("listener %s has no place left (max_conns %d), connections that wait: %d", l.Name, l.MaxConns, l.Queued)
		case within(l.LastRejected, now):
			add("listener %s turned connections away %s, there was no place left (max_conns %d)", l.Name, ago(*l.LastRejected, now), l.MaxConns)
		}
		for _, g := range grave {
			if at := l.LastErrors[g.reason]; within(&at, now) {
				add("listener %s: %s, last %s", l.Name, g.what, ago(at, now))
			}
		}
		if at := l.CertificateExpires; at != nil && at.Before(now) {
			add("listener %s: its certificate has expired on %s", l.Name, at.Format(time.RFC3339))
		}
		if at := l.RevocationListExpires; at != nil && at.Before(now) {
			add("listener %s refuses clients with certificates: a revocation list (client_crl) has expired on %s", l.Name, at.Format(time.RFC3339))
		}
	}
	for _, a := range additions {
		lines = append(lines, a.trouble(now)...)
	}
	for _, u := range s.Upstreams {
		if src := u.Source; src != nil && src.LastError != "" {
			add("upstream %s: its endpoints cannot be looked up (%s), the last set of %d is kept%s: %s", u.Name, src.Name, u.present(), Since(src.FailingSince, now), strings.ReplaceAll(src.LastError, "\n", "; "))
		}
		if u.PausedUntil != nil {
			waiting, open := u.Connections()
			add("upstream %s is paused by an operator until %s (%v): sessions that wait: %d, connections still in use: %d",
				u.Name, u.PausedUntil.Format(time.RFC3339), u.PausedUntil.Sub(now).Truncate(time.Second), waiting, open)
		}
		if u.FailOpen {
			add("upstream %s: every endpoint is out, all of them are tried", u.Name)
		}
		lines = append(lines, u.roleTroubles()...)
		lines = append(lines, u.pairTroubles(now)...)
		for _, e := range u.Endpoints {
			p := e.Pool
			if text := poolTrouble(p.InUse, p.MaxSize, p.Waiting, p.TimedOut+p.Rejected+p.GaveUp, p.LastRefused, now); text != "" && len(u.Pairs) == 0 {
				add("upstream %s, endpoint %s: %s", u.Name, e.Address, text)
			}
			if out := e.Override; (out == string(upstream.Drained) || out == string(upstream.Removed)) && !e.Removed {
				add("upstream %s, endpoint %s: it was %s by an operator and is used all the same, because no other is left", u.Name, e.Address, out)
			}
			// The check of an endpoint that has left may fail as long as its sessions stay: in a rollout it does, and nobody has to act.
			if e.State != stateHealthy && !e.Removed && e.LastError != "" {
				add("upstream %s, endpoint %s is %s: %s", u.Name, e.Address, e.State, e.LastError)
			}
			if text := e.Answered.trouble(); text != "" && !e.Removed {
				add("upstream %s, endpoint %s: %s", u.Name, e.Address, text)
			}
		}
	}
	return lines
}

// fewAnswers are too few in a minute for a share of them to say much: those of ten seconds at one a second.
const fewAnswers = 10

// trouble says that an endpoint answers with errors, "" if it does not. Such an endpoint accepts connections and may pass
// its checks, so that its state may be healthy.
func (a *Answered) trouble() string {
	if a == nil || a.Failed <= a.as.Tolerated*a.Done || a.as.Tolerated > 0 && a.Done < fewAnswers {
		return ""
	}
	return fmt.Sprintf("of %.0f %s in the last minute %.0f %s", max(a.Done, a.Failed), a.Unit, a.Failed, a.as.Failure)
}

// present counts the endpoints that were not removed.
func (u *UpstreamStatus) present() (n int) {
	for _, e := range u.Endpoints {
		if !e.Removed {
			n++
		}
	}
	return n
}

// Connections counts the sessions that wait for a connection, and the connections that are in use or being opened.
func (u *UpstreamStatus) Connections() (waiting, open int) {
	waiting = u.Waiting
	for _, e := range u.Endpoints {
		waiting += e.Pool.Waiting
		open += e.Pool.InUse + e.Pool.Opening + e.Pool.Direct
	}
	return waiting, open
}

// Since says since when, and for how long, something fails: " since 2026-01-02T03:04:05Z (10s)", nothing for nil.
func Since(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf(" since %s (%v)", t.Format(time.RFC3339), now.Sub(*t).Truncate(time.Second))
}

// ago says how long ago a time was.
func ago(t, now time.Time) string {
	return fmt.Sprintf("%v ago", max(now.Sub(t), time.Second).Truncate(time.Second))
}
