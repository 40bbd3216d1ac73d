package admin

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// Status is the body of /api/v1/status. Fields may be added.
type Status struct {
	Version       string           `json:"version"`
	GoVersion     string           `json:"go_version"`
	Engine        string           `json:"engine"`
	EngineReason  string           `json:"engine_reason"`
	EngineStats   EngineStats      `json:"engine_stats"`
	Process       Process          `json:"process"`
	ConfigFile    string           `json:"config_file"`
	Started       time.Time        `json:"started"`
	UptimeSeconds float64          `json:"uptime_seconds"`
	Ready         bool             `json:"ready"`
	Draining      bool             `json:"draining"`
	NotReady      []string         `json:"not_ready"`
	Reloads       ReloadStatus     `json:"reloads"`
	Log           LogStatus        `json:"log"`
	Listeners     []Listener       `json:"listeners"`
	Upstreams     []UpstreamStatus `json:"upstreams"`
	Retiring      []RetiringStatus `json:"retiring"`
	Trouble       []string         `json:"trouble"` // sentences about problems
	Sizing        []string         `json:"sizing"`  // sentences about pools that are too small or larger than needed, and about warm connections that gain little
	Tables        []Table          `json:"tables"`  // of Rows
	Rows          map[string]any   `json:",embed"`  // of protocols and extensions, by Addition.Key: further members of the same JSON object
}

// RetiringStatus is a part of the gateway that a reload has removed or replaced, and that is still
// used.
type RetiringStatus struct {
	Kind     string    `json:"kind"` // "listener", "upstream" or an extension's
	Name     string    `json:"name"`
	Protocol string    `json:"protocol"`
	Active   int       `json:"active"` // a listener's sessions, an upstream's sessions or connections, an extension's connections
	Since    time.Time `json:"since"`
}

// EngineStats are the engine's counters; without loops all are 0.
type EngineStats struct {
	Loops       int    `json:"loops"`
	Connections int    `json:"connections"` // open, of clients and upstreams
	Fibers      int    `json:"fibers"`
	Panics      uint64 `json:"panics"` // panics that ended a fiber
	Held        uint64 `json:"held"`   // times a fiber held its loop for more than 10 ms
	Ticks       uint64 `json:"ticks"`
}

// Process is what the process uses. What the system does not report is 0.
type Process struct {
	CPUSeconds    float64 `json:"cpu_seconds"` // processor time since the start, of all threads
	CPUs          int     `json:"cpus"`        // processors that it may use at once
	ResidentBytes uint64  `json:"resident_bytes"`
}

// ReloadStatus is the outcome of reloads.
type ReloadStatus struct {
	Applied   uint64     `json:"applied"`
	Refused   uint64     `json:"refused"`
	Last      *time.Time `json:"last"` // null: none yet
	LastError string     `json:"last_error"`
	// LastChanges is what the last one that was applied has changed, "nothing" if nothing.
	LastChanges string `json:"last_changes"`
	// LastWarnings are the warnings of the file that was applied last, with their positions.
	LastWarnings []string `json:"last_warnings"`
}

// LogStatus is the state of writing the log. Lines counts the missing lines since the start, by
// reason.
type LogStatus struct {
	SlowReader  uint64 `json:"slow_reader"`
	DiskFull    uint64 `json:"disk_full"`
	WriteFailed uint64 `json:"write_failed"`
	Error       string `json:"error"` // why it cannot be written now; empty: it can
}

// Listener is one listener.
type Listener struct {
	Name      string `json:"name"`
	Protocol  string `json:"protocol"`
	Address   string `json:"address"`
	Active    int    `json:"active"`
	Queued    int    `json:"queued"`
	Listening int    `json:"listening"` // PostgreSQL sessions that listen for notifications through their upstream's listening connection
	Pinned    int    `json:"pinned"`    // sessions that keep a server connection between transactions for state in it
	MaxConns  int    `json:"max_conns"`
	Buffered  int64  `json:"buffered"` // bytes held for requests; http only
	Draining  bool   `json:"draining"`
	Accepted  uint64 `json:"accepted"`
	Rejected  uint64 `json:"rejected"`
	Gone      uint64 `json:"gone"`  // connections whose client had left before their session began
	Moved     uint64 `json:"moved"` // how often a TCP session has left an endpoint before its first byte, for another one
	// MovesRefused counts the moves that the retry budget did not allow.
	MovesRefused uint64            `json:"moves_refused"`
	Errors       map[string]uint64 `json:"errors"` // by reason
	// LastErrors is when an error of the reason was counted last.
	LastErrors map[string]time.Time `json:"last_errors"`
	// LastRejected is when a connection was last rejected by the connection limit; null: never.
	LastRejected *time.Time `json:"last_rejected"`
	BytesIn      uint64     `json:"bytes_in"`
	BytesOut     uint64     `json:"bytes_out"`
	// LastMinute is null for listeners whose protocol counts only sessions.
	LastMinute *LastMinute `json:"last_minute"`
	// Served counts since the listener's start; null: its protocol counts only sessions.
	Served *Served `json:"served"`
	// CertificateExpires is null without TLS.
	CertificateExpires *time.Time `json:"certificate_expires"`
	// RevocationListExpires is when the first revocation list of clients' certificates expires, and clients are refused.
	RevocationListExpires *time.Time `json:"revocation_list_expires"`
}

// LastMinute is the activity of a listener in the last minute, or since its start if that is less.
type LastMinute struct {
	Unit      string    `json:"unit"` // requests or transactions
	PerSecond float64   `json:"per_second"`
	Failed    float64   `json:"failed"`  // HTTP: without an answer, or with a status of 500 or more; PostgreSQL: errors that concern the server or the gateway, postgres_failures_total
	Done      float64   `json:"done"`    // all of them, failed ones included
	Seconds   Quantiles `json:"seconds"` // how long they took, 0 if there were none
}

// Served counts requests or transactions since the start.
type Served struct {
	Unit      string    `json:"unit"` // requests or transactions
	Done      float64   `json:"done"`
	Failed    float64   `json:"failed"`              // as in LastMinute
	Histogram Histogram `json:"histogram,omitempty"` // of how long they took
}

// UpstreamStatus is one upstream.
type UpstreamStatus struct {
	Name        string     `json:"name"`
	Protocol    string     `json:"protocol"`
	Balance     string     `json:"balance"`
	Target      string     `json:"target"`       // the role that endpoints must have, "any" or another word of libpq's target_session_attrs
	NoRole      bool       `json:"no_role"`      // no endpoint has it, and clients wait
	FailOpen    bool       `json:"fail_open"`    // every endpoint is out, those of the first priority are used
	Waiting     int        `json:"waiting"`      // clients that wait for no pool yet: for a role, to be pinned, or for the source's first report
	PausedUntil *time.Time `json:"paused_until"` // by an operator, who may also resume it; null: it is not paused
	Source      *Source    `json:"source"`       // null: the endpoints are in the configuration
	Endpoints   []Endpoint `json:"endpoints"`
	Pairs       []Pair     `json:"pairs"`      // by name; empty: the upstream logs in as one user
	MorePairs   int        `json:"more_pairs"` // that Pairs does not list
	// Served is the sum over the listeners, of which a reload may remove some; null: the protocol counts only sessions.
	Served *Served `json:"served"`
}

// Source is where the endpoints of an upstream are found.
type Source struct {
	Name         string     `json:"name"`          // such as "dns api.internal:6443"
	Updated      *time.Time `json:"updated"`       // null: nothing was found yet
	Changed      *time.Time `json:"changed"`       // null: never
	FailingSince *time.Time `json:"failing_since"` // null: discovery works
	LastError    string     `json:"last_error"`    // empty: discovery works
	Failed       uint64     `json:"failed"`
	Added        uint64     `json:"added"`
	Removed      uint64     `json:"removed"`
	Altered      uint64     `json:"altered"`
}

// Endpoint is one endpoint of an upstream.
type Endpoint struct {
	Address      string            `json:"address"`
	Weight       int               `json:"weight"`
	Priority     int               `json:"priority"`
	Zone         string            `json:"zone"`
	Metadata     map[string]string `json:"metadata"` // from the source, such as "name" of the DNS; null: none
	Removed      bool              `json:"removed"`  // by a reload, its source or an operator; listed until its leases are released, or the operator's change is taken back
	Override     string            `json:"override"` // by an operator: "added", "drained", "removed", "weight"; empty: nothing
	Kept         bool              `json:"kept"`     // the override outlasts reloads
	Healthy      bool              `json:"healthy"`
	Ejected      bool              `json:"ejected"`
	EjectedUntil *time.Time        `json:"ejected_until"` // null: not ejected
	Failures     int               `json:"failures"`
	LastError    string            `json:"last_error"`
	LastFailed   *time.Time        `json:"last_failed"` // null: never
	Role         string            `json:"role"`        // "primary", "read-only primary", "standby", "unknown"; empty: the upstream's target is "any"
	State        string            `json:"state"`       // healthy, failing, ejected, unhealthy, drained or removed
	Pool         Pool              `json:"pool"`
	Answered     *Answered         `json:"answered_last_minute"` // null: the protocol counts no answers
}

// Answered is what an endpoint has answered in the last minute.
type Answered struct {
	Unit   string  `json:"unit"`   // requests
	Done   float64 `json:"done"`   // all of them, failed ones included
	Failed float64 `json:"failed"` // HTTP: with a status of 500 or more, except 501 and 505; PostgreSQL: with an error of SQLSTATE class 53, 58, F0 or XX, except 53400 and XX000
	as     *traffic.Summary
}

// Pool is the pool of one endpoint, and an element of /api/v1/pools.
type Pool struct {
	Name       string  `json:"name"` // of the upstream
	Protocol   string  `json:"protocol"`
	Endpoint   string  `json:"endpoint"`
	Reuses     bool    `json:"reuses"` // false: a connection has one session, and there is no reuse_ratio to look at
	heavy      bool    // see Upstream.Heavy
	Idle       int     `json:"idle"`
	InUse      int     `json:"in_use"`
	Opening    int     `json:"opening"`
	Waiting    int     `json:"waiting"`
	OldestWait float64 `json:"oldest_wait_seconds"` // of those that wait; 0: none does
	MaxSize    int     `json:"max_size"`            // of an upstream with pairs: the sum of theirs
	MinIdle    int     `json:"min_idle"`
	WarmTarget int     `json:"warm_target"` // idle ones that are kept ready now, from min_idle to max_warm
	MaxWarm    int     `json:"max_warm"`
	Direct     int     `json:"direct"` // out, beyond max_size
	Acquired   uint64  `json:"acquired"`
	Reused     uint64  `json:"reused"`
	ReuseRatio float64 `json:"reuse_ratio"` // reused / acquired; 0 when nothing was acquired
	Opened     uint64  `json:"opened"`
	OpenFailed uint64  `json:"open_failed"`
	Waited     uint64  `json:"waited"`
	TimedOut   uint64  `json:"timed_out"`
	Rejected   uint64  `json:"rejected"`
	GaveUp     uint64  `json:"gave_up"`
	Discarded  uint64  `json:"discarded"`
	Canceled   uint64  `json:"canceled"`
	PeakInUse  int     `json:"peak_in_use"`
	// Since is when the pool was made; its counters begin then.
	Since time.Time `json:"since"`
	// LastRefused is when an acquire timed out or was rejected last; null: never.
	LastRefused    *time.Time `json:"last_refused"`
	AcquireSeconds Quantiles  `json:"acquire_seconds"`
	// AcquireHistogram is how long acquires took.
	AcquireHistogram Histogram `json:"acquire_histogram,omitempty"`
	// OpenSeconds is how long it takes to open a connection, a moving average; 0: none was opened.
	OpenSeconds   float64 `json:"open_seconds"`
	LastOpenError string  `json:"last_open_error"`
}

// Quantiles are upper bounds of the quantiles, in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// pools is the body of /api/v1/pools.
type pools struct {
	Pools []Pool `json:"pools"`
}

// status turns a snapshot into the API's form. Lists are never null.
func status(s Snapshot, now time.Time, histograms bool) Status {
	out := Status{
		Version: s.Version, GoVersion: runtime.Version(), Engine: s.Engine, EngineReason: s.EngineReason,
		EngineStats: EngineStats{
			Loops: s.EngineStats.Loops, Connections: s.EngineStats.Conns, Fibers: s.EngineStats.Fibers,
			Panics: s.EngineStats.Panics, Held: s.EngineStats.Held, Ticks: s.EngineStats.Ticks,
		},
		Process:    Process{CPUSeconds: s.Process.CPU.Seconds(), CPUs: s.Process.CPUs, ResidentBytes: s.Process.Resident},
		ConfigFile: s.ConfigFile,
		Started:    s.Started, UptimeSeconds: now.Sub(s.Started).Seconds(),
		Ready: ready(s), Draining: s.Draining, NotReady: append([]string{}, s.NotReady...),
		Reloads:   ReloadStatus{Applied: s.Reloads.Applied, Refused: s.Reloads.Refused, Last: timeOrNil(s.Reloads.Last), LastError: s.Reloads.LastError, LastChanges: s.Reloads.LastChanges, LastWarnings: append([]string{}, s.Reloads.LastWarnings...)},
		Log:       LogStatus{SlowReader: s.Log.TooSlow, DiskFull: s.Log.DiskFull, WriteFailed: s.Log.Failed, Error: s.Log.Error},
		Listeners: make([]Listener, 0, len(s.Listeners)),
		Upstreams: make([]UpstreamStatus, 0, len(s.Upstreams)),
		Retiring:  make([]RetiringStatus, 0, len(s.Retiring)),
		Tables:    make([]Table, 0, len(s.Additions)),
		Rows:      map[string]any{},
	}
	for _, r := range s.Retiring {
		out.Retiring = append(out.Retiring, RetiringStatus(r))
	}
	for _, l := range s.Listeners {
		shown := listenerStatus(l, s.Certificates[l.Name])
		shown.RevocationListExpires = timeOrNil(s.RevocationLists[l.Name])
		if r, ok := s.Recent[l.Name]; ok {
			shown.LastMinute = lastMinute(r)
		}
		shown.Served = served(l.Traffic, "", histograms)
		out.Listeners = append(out.Listeners, shown)
	}
	for _, u := range s.Upstreams {
		shown := upstreamStatus(u, now, histograms)
		shown.Served = servedBy(s.Listeners, u, histograms)
		out.Upstreams = append(out.Upstreams, shown)
	}
	for _, a := range s.Additions {
		out.Tables, out.Rows[a.Key] = append(out.Tables, a.table), a.Rows
	}
	out.Trouble, out.Sizing = troubles(&out, s.Additions, now), sizing(&out, now)
	return out
}

func ready(s Snapshot) bool { return !s.Draining && len(s.NotReady) == 0 }

func listenerStatus(l listener.Stats, expires time.Time) Listener {
	errs, last := l.Errors, l.LastErrors
	if errs == nil {
		errs = map[string]uint64{}
	}
	if last == nil {
		last = map[string]time.Time{}
	}
	return Listener{
		Name: l.Name, Protocol: l.Protocol, Address: l.Address, Active: l.Active, Queued: l.Queued, Pinned: l.Pinned, Listening: l.Listening, MaxConns: l.MaxConns, Buffered: l.Buffered, Draining: l.Draining,
		Accepted: l.Accepted, Rejected: l.Rejected, Gone: l.Gone, Moved: l.Moved, MovesRefused: l.MovesRefused, Errors: errs, LastErrors: last, BytesIn: l.BytesIn, BytesOut: l.BytesOut,
		LastRejected:       timeOrNil(l.LastRejected),
		CertificateExpires: timeOrNil(expires),
	}
}

func lastMinute(r Recent) *LastMinute {
	out := &LastMinute{Unit: r.Unit, Failed: r.Total.Failed, Done: r.Total.Done, Seconds: quantiles(&r.Total.Time)}
	if r.Over > 0 {
		out.PerSecond = r.Total.Done / r.Over.Seconds()
	}
	return out
}

// quantiles are the quantiles of a pool's or a listener's histogram.
func quantiles(h interface{ Quantile(float64) time.Duration }) Quantiles {
	return Quantiles{P50: h.Quantile(0.50).Seconds(), P90: h.Quantile(0.90).Seconds(), P99: h.Quantile(0.99).Seconds()}
}

// upstreamLabel is the label of the rows of a listener's traffic that names the upstream.
const upstreamLabel = "upstream"

// servedBy returns what the listeners have counted for an upstream, nil if its protocol does not count.
func servedBy(listeners []listener.Stats, u Upstream, histograms bool) *Served {
	var all []traffic.Snapshot
	for i := range listeners {
		if listeners[i].Protocol == u.Protocol {
			all = append(all, listeners[i].Traffic...)
		}
	}
	return served(all, u.Name, histograms)
}

// served returns the sum of the snapshots that count requests or transactions, of all rows or of those of one upstream;
// nil if there is no such snapshot.
func served(all []traffic.Snapshot, upstream string, histograms bool) *Served {
	var out *Served
	var times traffic.Histogram
	for i := range all {
		s := &all[i]
		if s.Schema == nil || s.Summary == nil {
			continue
		}
		if out == nil {
			out = &Served{Unit: s.Summary.Unit}
		}
		at := slices.Index(s.Labels, upstreamLabel)
		for j := range s.Rows {
			row := &s.Rows[j]
			if upstream != "" && (at < 0 || row.Labels[at] != upstream) {
				continue
			}
			out.Done += s.Summary.Done(row)
			out.Failed += s.Summary.Failed(row)
			h := s.Summary.Time(row)
			times.Add(&h)
		}
	}
	if histograms && out != nil {
		out.Histogram = trafficHistogram(&times)
	}
	return out
}

func upstreamStatus(u Upstream, now time.Time, histograms bool) UpstreamStatus {
	out := UpstreamStatus{Name: u.Name, Protocol: u.Protocol, Balance: u.Balance, Target: u.Target.String(), NoRole: u.NoRole, FailOpen: u.FailOpen, Waiting: u.Waiting, PausedUntil: timeOrNil(u.PausedUntil), Pairs: pairs(u.Tenants), MorePairs: u.MoreTenants, Endpoints: make([]Endpoint, 0, len(u.Endpoints))}
	if src := u.Status.Source; src.Name != "" {
		out.Source = &Source{
			Name: src.Name, Updated: timeOrNil(src.Updated), Changed: timeOrNil(src.Changed), FailingSince: timeOrNil(src.FailingSince),
			LastError: src.LastError, Failed: src.Failed, Added: src.Added, Removed: src.Removed, Altered: src.Altered,
		}
	}
	addresses := distinctAddresses(u.Endpoints)
	for i, e := range u.Endpoints {
		end := Endpoint{
			Address: addresses[i], Weight: e.Weight, Priority: e.Priority, Zone: e.Zone, Metadata: e.Metadata, Removed: e.Removed, Override: e.Override, Kept: e.Kept, Healthy: e.Healthy, Ejected: e.Ejected, EjectedUntil: timeOrNil(e.EjectedUntil),
			Failures: e.Failures, LastError: e.LastError, LastFailed: timeOrNil(e.LastFailed),
			Pool: poolStatus(u, addresses[i], e.Pool),
		}
		if u.Target != upstream.TargetAny {
			end.Role = e.Role.String()
		}
		if histograms {
			end.Pool.AcquireHistogram = acquireHistogram(&e.Pool.AcquireSeconds)
		}
		if i < len(u.Recent) {
			end.Answered = &Answered{Unit: u.Traffic.Summary.Unit, Done: u.Recent[i].Done, Failed: u.Recent[i].Failed, as: u.Traffic.Summary}
		}
		end.State = end.state(now)
		out.Endpoints = append(out.Endpoints, end)
	}
	return out
}

func poolStatus(u Upstream, address string, p pool.Stats) Pool {
	out := Pool{
		Name: u.Name, Protocol: u.Protocol, Endpoint: address, Reuses: u.Reuses, heavy: u.Heavy,
		Idle: p.Idle, InUse: p.InUse, Opening: p.Opening, Waiting: p.Waiting, OldestWait: p.OldestWait.Seconds(), MaxSize: p.MaxSize, MinIdle: p.MinIdle, WarmTarget: p.WarmTarget, MaxWarm: p.MaxWarm, Direct: p.Direct, OpenSeconds: p.OpenTime.Seconds(),
		Acquired: p.Acquired, Reused: p.Reused, Opened: p.Opened, OpenFailed: p.OpenFailed,
		Waited: p.Waited, TimedOut: p.TimedOut, Rejected: p.Rejected, GaveUp: p.GaveUp, Discarded: p.Discarded, LastOpenError: text(p.LastOpenError),
		Canceled: p.Canceled, PeakInUse: p.PeakInUse, Since: p.Since, LastRefused: timeOrNil(p.LastRefused),
		AcquireSeconds: quantiles(&p.AcquireSeconds),
	}
	if p.Acquired > 0 {
		out.ReuseRatio = float64(p.Reused) / float64(p.Acquired)
	}
	return out
}

// distinctAddresses returns the endpoints' addresses, with "#2", "#3" … after repeated ones: they
// label metrics, and a repeated label set would make the whole scrape fail.
func distinctAddresses(endpoints []upstream.EndpointStatus) []string {
	out := make([]string, len(endpoints))
	seen := map[string]int{}
	for i, e := range endpoints {
		out[i] = strings.ToValidUTF8(e.Address, "�")
		seen[out[i]]++
		if n := seen[out[i]]; n > 1 {
			out[i] = fmt.Sprintf("%s#%d", out[i], n)
		}
	}
	return out
}

// text returns an error's text; "" for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
