package admin

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// Status is the body of /api/v1/status. Fields may be added.
type Status struct {
	Version       string           `json:"version"`
	GoVersion     string           `json:"go_version"`
	Engine        string           `json:"engine"`
	EngineReason  string           `json:"engine_reason"`
	EngineStats   EngineStats      `json:"engine_stats"`
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
	Tunnels       []TunnelStatus   `json:"tunnels"`
	Retiring      []RetiringStatus `json:"retiring"`
	Trouble       []string         `json:"trouble"` // sentences about what does not work
	Sizing        []string         `json:"sizing"`  // sentences about pools that are too small, or larger than needed
}

// RetiringStatus is something that a reload has removed or replaced and that is still used.
type RetiringStatus struct {
	Kind     string    `json:"kind"` // "listener", "upstream" or "tunnel"
	Name     string    `json:"name"`
	Protocol string    `json:"protocol"`
	Active   int       `json:"active"` // a listener's sessions, an upstream's sessions or connections, a tunnel's connections
	Since    time.Time `json:"since"`
}

// TunnelStatus is one end of a tunnel. Counters count since the start.
type TunnelStatus struct {
	Name      string   `json:"name"`      // the tunnel's, or of side "listen" the listener's
	Side      string   `json:"side"`      // "connect" or "listen"
	Connected []string `json:"connected"` // names of the peers that have a session; of side "connect" one, empty name
	// LastError is why a session that should be there is not; empty: none is missing. FailingSince is since when.
	LastError    string     `json:"last_error"`
	FailingSince *time.Time `json:"failing_since"` // null: not failing
	Sessions     int        `json:"sessions"`
	Suspended    int        `json:"suspended"`   // sessions that wait for another socket
	Streams      int        `json:"streams"`     // connections that are open
	Made         uint64     `json:"made"`        // sessions
	TurnedAway   uint64     `json:"turned_away"` // sessions that were too many
	Lost         uint64     `json:"lost"`        // sessions, with their connections
	SocketsLost  uint64     `json:"sockets_lost"`
	Resumed      uint64     `json:"resumed"`
	Opened       uint64     `json:"opened"`   // connections this gateway asked for
	Accepted     uint64     `json:"accepted"` // connections the other side asked for
	Refused      uint64     `json:"refused"`  // of those, by policy or limit
	Failed       uint64     `json:"failed"`   // of those, because the target could not be reached
	BytesIn      uint64     `json:"bytes_in"`
	BytesOut     uint64     `json:"bytes_out"`
}

// EngineStats are the engine's counters; without loops all are 0.
type EngineStats struct {
	Loops       int    `json:"loops"`
	Connections int    `json:"connections"` // open, of clients and upstreams
	Fibers      int    `json:"fibers"`
	Panics      uint64 `json:"panics"` // fibers ended by one
	Held        uint64 `json:"held"`   // times a fiber held its loop for more than 10 ms
	Turns       uint64 `json:"turns"`
}

// ReloadStatus tells how reloads went.
type ReloadStatus struct {
	Applied   uint64     `json:"applied"`
	Refused   uint64     `json:"refused"`
	Last      *time.Time `json:"last"` // null: none yet
	LastError string     `json:"last_error"`
}

// LogStatus tells how writing the log fares. Lines are those missing since the start, by reason.
type LogStatus struct {
	SlowReader  uint64 `json:"slow_reader"`
	DiskFull    uint64 `json:"disk_full"`
	WriteFailed uint64 `json:"write_failed"`
	Error       string `json:"error"` // why it cannot be written now; empty: it can
}

// Listener is one listener.
type Listener struct {
	Name     string            `json:"name"`
	Protocol string            `json:"protocol"`
	Address  string            `json:"address"`
	Active   int               `json:"active"`
	Queued   int               `json:"queued"`
	MaxConns int               `json:"max_conns"`
	Draining bool              `json:"draining"`
	Accepted uint64            `json:"accepted"`
	Rejected uint64            `json:"rejected"`
	Errors   map[string]uint64 `json:"errors"` // by reason
	// LastRejected is when a connection was turned away last because there was no place; null: never.
	LastRejected *time.Time `json:"last_rejected"`
	BytesIn      uint64     `json:"bytes_in"`
	BytesOut     uint64     `json:"bytes_out"`
	// CertificateExpires is null without TLS.
	CertificateExpires *time.Time `json:"certificate_expires"`
}

// UpstreamStatus is one upstream.
type UpstreamStatus struct {
	Name      string     `json:"name"`
	Protocol  string     `json:"protocol"`
	Balance   string     `json:"balance"`
	FailOpen  bool       `json:"fail_open"` // every endpoint is out, all of them are used
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is one endpoint of an upstream.
type Endpoint struct {
	Address      string     `json:"address"`
	Removed      bool       `json:"removed"` // by a reload; here until its connections have come back
	Healthy      bool       `json:"healthy"`
	Ejected      bool       `json:"ejected"`
	EjectedUntil *time.Time `json:"ejected_until"` // null: not ejected
	Failures     int        `json:"failures"`
	LastError    string     `json:"last_error"`
	LastFailed   *time.Time `json:"last_failed"` // null: never
	State        string     `json:"state"`       // healthy, failing, ejected, unhealthy or removed
	Pool         Pool       `json:"pool"`
}

// Pool is the pool of one endpoint, and an element of /api/v1/pools.
type Pool struct {
	Name       string  `json:"name"` // of the upstream
	Protocol   string  `json:"protocol"`
	Endpoint   string  `json:"endpoint"`
	Idle       int     `json:"idle"`
	InUse      int     `json:"in_use"`
	Opening    int     `json:"opening"`
	Waiting    int     `json:"waiting"`
	MaxSize    int     `json:"max_size"`
	Direct     int     `json:"direct"` // out, beyond max_size
	Acquired   uint64  `json:"acquired"`
	Reused     uint64  `json:"reused"`
	ReuseRatio float64 `json:"reuse_ratio"` // reused / acquired; 0 when nothing was acquired
	Opened     uint64  `json:"opened"`
	OpenFailed uint64  `json:"open_failed"`
	Waited     uint64  `json:"waited"`
	TimedOut   uint64  `json:"timed_out"`
	Rejected   uint64  `json:"rejected"`
	Discarded  uint64  `json:"discarded"`
	Canceled   uint64  `json:"canceled"`
	PeakInUse  int     `json:"peak_in_use"`
	// Since is when the pool was made; its counters begin then.
	Since time.Time `json:"since"`
	// LastRefused is when an acquire timed out or was rejected last; null: never.
	LastRefused    *time.Time `json:"last_refused"`
	AcquireSeconds Quantiles  `json:"acquire_seconds"`
	LastOpenError  string     `json:"last_open_error"`
}

// Quantiles are upper bounds, in seconds, of how long that part of the acquires took at most.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// pools is the body of /api/v1/pools.
type pools struct {
	Pools []Pool `json:"pools"`
}

// status turns a snapshot into what the API shows. Lists are never null.
func status(s Snapshot, now time.Time) Status {
	out := Status{
		Version: s.Version, GoVersion: runtime.Version(), Engine: s.Engine, EngineReason: s.EngineReason,
		EngineStats: EngineStats{
			Loops: s.EngineStats.Loops, Connections: s.EngineStats.Conns, Fibers: s.EngineStats.Fibers,
			Panics: s.EngineStats.Panics, Held: s.EngineStats.Held, Turns: s.EngineStats.Turns,
		},
		ConfigFile: s.ConfigFile,
		Started:    s.Started, UptimeSeconds: now.Sub(s.Started).Seconds(),
		Ready: ready(s), Draining: s.Draining, NotReady: append([]string{}, s.NotReady...),
		Reloads:   ReloadStatus{Applied: s.Reloads.Applied, Refused: s.Reloads.Refused, Last: timeOrNil(s.Reloads.Last), LastError: s.Reloads.LastError},
		Log:       LogStatus{SlowReader: s.Log.TooSlow, DiskFull: s.Log.DiskFull, WriteFailed: s.Log.Failed, Error: s.Log.Error},
		Listeners: make([]Listener, 0, len(s.Listeners)),
		Upstreams: make([]UpstreamStatus, 0, len(s.Upstreams)),
		Tunnels:   make([]TunnelStatus, 0, len(s.Tunnels)),
		Retiring:  make([]RetiringStatus, 0, len(s.Retiring)),
	}
	for _, r := range s.Retiring {
		out.Retiring = append(out.Retiring, RetiringStatus(r))
	}
	for _, l := range s.Listeners {
		out.Listeners = append(out.Listeners, listenerStatus(l, s.Certificates[l.Name]))
	}
	for _, u := range s.Upstreams {
		out.Upstreams = append(out.Upstreams, upstreamStatus(u, now))
	}
	for _, t := range s.Tunnels {
		out.Tunnels = append(out.Tunnels, TunnelStatus{
			Name: t.Name, Side: t.Side, Connected: append([]string{}, t.Connected...), Sessions: t.Sessions, Suspended: t.Suspended, Streams: t.Streams,
			Made: t.Made, TurnedAway: t.TurnedAway, Lost: t.Lost, SocketsLost: t.Broken, Resumed: t.Resumed, Opened: t.Opened, Accepted: t.Accepted,
			Refused: t.Refused, Failed: t.Failed, BytesIn: t.BytesIn, BytesOut: t.BytesOut,
			LastError: text(t.LastError), FailingSince: timeOrNil(t.FailingSince),
		})
	}
	out.Trouble, out.Sizing = troubles(&out, now), sizing(&out, now)
	return out
}

func ready(s Snapshot) bool { return !s.Draining && len(s.NotReady) == 0 }

func listenerStatus(l listener.Stats, expires time.Time) Listener {
	errs := l.Errors
	if errs == nil {
		errs = map[string]uint64{}
	}
	return Listener{
		Name: l.Name, Protocol: l.Protocol, Address: l.Address, Active: l.Active, Queued: l.Queued, MaxConns: l.MaxConns, Draining: l.Draining,
		Accepted: l.Accepted, Rejected: l.Rejected, Errors: errs, BytesIn: l.BytesIn, BytesOut: l.BytesOut,
		LastRejected:       timeOrNil(l.LastRejected),
		CertificateExpires: timeOrNil(expires),
	}
}

func upstreamStatus(u Upstream, now time.Time) UpstreamStatus {
	out := UpstreamStatus{Name: u.Name, Protocol: u.Protocol, Balance: u.Balance, FailOpen: u.FailOpen, Endpoints: make([]Endpoint, 0, len(u.Endpoints))}
	addresses := distinctAddresses(u.Endpoints)
	for i, e := range u.Endpoints {
		end := Endpoint{
			Address: addresses[i], Removed: e.Removed, Healthy: e.Healthy, Ejected: e.Ejected, EjectedUntil: timeOrNil(e.EjectedUntil),
			Failures: e.Failures, LastError: e.LastError, LastFailed: timeOrNil(e.LastFailed),
			Pool: poolStatus(u, addresses[i], e.Pool),
		}
		end.State = end.state(now)
		out.Endpoints = append(out.Endpoints, end)
	}
	return out
}

func poolStatus(u Upstream, address string, p pool.Stats) Pool {
	out := Pool{
		Name: u.Name, Protocol: u.Protocol, Endpoint: address,
		Idle: p.Idle, InUse: p.InUse, Opening: p.Opening, Waiting: p.Waiting, MaxSize: p.MaxSize, Direct: p.Direct,
		Acquired: p.Acquired, Reused: p.Reused, Opened: p.Opened, OpenFailed: p.OpenFailed,
		Waited: p.Waited, TimedOut: p.TimedOut, Rejected: p.Rejected, Discarded: p.Discarded, LastOpenError: text(p.LastOpenError),
		Canceled: p.Canceled, PeakInUse: p.PeakInUse, Since: p.Since, LastRefused: timeOrNil(p.LastRefused),
		AcquireSeconds: Quantiles{
			P50: p.AcquireSeconds.Quantile(0.50).Seconds(),
			P90: p.AcquireSeconds.Quantile(0.90).Seconds(),
			P99: p.AcquireSeconds.Quantile(0.99).Seconds(),
		},
	}
	if p.Acquired > 0 {
		out.ReuseRatio = float64(p.Reused) / float64(p.Acquired)
	}
	return out
}

// distinctAddresses returns the endpoints' addresses with "#2", "#3" … after repeated ones: they label metrics, and a repeated label set
// would make a whole scrape fail.
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

// text is an error's; "" for nil.
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
