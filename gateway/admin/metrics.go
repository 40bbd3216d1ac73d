package admin

import (
	"maps"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/traffic"
)

// collector turns one Snapshot into metrics at each scrape; nothing is kept in between.
type collector struct{ snapshot func() Snapshot }

// newRegistry returns the metrics of the gateway, the Go runtime and the process.
func newRegistry(snapshot func() Snapshot) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collector{snapshot}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return r, nil
}

var (
	poolLabels     = []string{"upstream", "endpoint", "protocol"}
	listenerLabels = []string{"listener", "protocol"}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("headpond_"+name, help, labels, nil)
}

// metric is one number read from a T.
type metric[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(T) float64
}

func gauge[T any](name, help string, labels []string, read func(T) float64) metric[T] {
	return metric[T]{desc(name, help, labels...), prometheus.GaugeValue, read}
}

func counter[T any](name, help string, labels []string, read func(T) float64) metric[T] {
	return metric[T]{desc(name, help, labels...), prometheus.CounterValue, read}
}

var poolMetrics = []metric[pool.Stats]{
	gauge("pool_idle", "Connections that are open and idle.", poolLabels, func(p pool.Stats) float64 { return float64(p.Idle) }),
	gauge("pool_in_use", "Connections that are leased.", poolLabels, func(p pool.Stats) float64 { return float64(p.InUse) }),
	gauge("pool_opening", "Connections being opened.", poolLabels, func(p pool.Stats) float64 { return float64(p.Opening) }),
	gauge("pool_waiting", "Callers that wait for a connection.", poolLabels, func(p pool.Stats) float64 { return float64(p.Waiting) }),
	gauge("pool_warm_target", "Idle connections that the pool keeps ready now.", poolLabels, func(p pool.Stats) float64 { return float64(p.WarmTarget) }),
	gauge("pool_max_size", "Limit of connections of the pool (max_size).", poolLabels, func(p pool.Stats) float64 { return float64(p.MaxSize) }),
	gauge("pool_direct", "Open connections beyond max_size (overflow: direct).", poolLabels, func(p pool.Stats) float64 { return float64(p.Direct) }),
	counter("pool_opened_total", "Connections opened.", poolLabels, func(p pool.Stats) float64 { return float64(p.Opened) }),
	counter("pool_open_failed_total", "Connections that could not be opened.", poolLabels, func(p pool.Stats) float64 { return float64(p.OpenFailed) }),
	counter("pool_acquired_total", "Connections leased.", poolLabels, func(p pool.Stats) float64 { return float64(p.Acquired) }),
	counter("pool_reused_total", "Leases of a connection that had been leased before.", poolLabels, func(p pool.Stats) float64 { return float64(p.Reused) }),
	counter("pool_released_total", "Leases ended.", poolLabels, func(p pool.Stats) float64 { return float64(p.Released) }),
	counter("pool_waited_total", "Acquires that had to wait.", poolLabels, func(p pool.Stats) float64 { return float64(p.Waited) }),
	counter("pool_timeouts_total", "Acquires that timed out.", poolLabels, func(p pool.Stats) float64 { return float64(p.TimedOut) }),
	counter("pool_rejected_total", "Acquires refused because too many were waiting.", poolLabels, func(p pool.Stats) float64 { return float64(p.Rejected) }),
	counter("pool_gave_up_total", "Acquires refused because their turn would have come after the client's deadline.", poolLabels, func(p pool.Stats) float64 { return float64(p.GaveUp) }),
	counter("pool_canceled_total", "Acquires whose caller left.", poolLabels, func(p pool.Stats) float64 { return float64(p.Canceled) }),
	counter("pool_replaced_total", "Leases that got another connection in place of theirs, which was closed.", poolLabels, func(p pool.Stats) float64 { return float64(p.Replaced) }),
	counter("pool_overflowed_total", "Connections opened beyond max_size.", poolLabels, func(p pool.Stats) float64 { return float64(p.Overflowed) }),
}

var listenerMetrics = []metric[listener.Stats]{
	gauge("listener_connections_active", "Running sessions.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Active) }),
	gauge("listener_connections_queued", "Connections waiting for admission.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Queued) }),
	gauge("listener_connections_max", "Limit of running sessions.", listenerLabels, func(l listener.Stats) float64 { return float64(l.MaxConns) }),
	gauge("listener_sessions_listening", "PostgreSQL sessions that listen for notifications without a server connection of their own.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Listening) }),
	gauge("listener_sessions_pinned", "Sessions that keep a server connection between transactions for state in it.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Pinned) }),
	gauge("listener_buffered_bytes", "Memory held for requests: heads, and pieces of bodies that the other side has not taken. http only.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Buffered) }),
	counter("listener_connections_accepted_total", "Connections accepted.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Accepted) }),
	counter("listener_connections_rejected_total", "Connections rejected because of a limit, their address or a missing PROXY header.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Rejected) }),
	counter("listener_connections_gone_total", "Connections whose client had left before their session began: none reached a backend.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Gone) }),
	counter("listener_state_checks_total", "PostgreSQL transactions after which the server was asked for session state of any kind: they called functions that may leave some.", listenerLabels, func(l listener.Stats) float64 { return float64(l.StateChecks) }),
	counter("listener_sessions_moved_total", "Times that a session has left an endpoint that broke off before its first byte, for another one. tcp only.", listenerLabels, func(l listener.Stats) float64 { return float64(l.Moved) }),
	counter("listener_moves_refused_total", "Times that a session would have left its endpoint, had the retry budget allowed it. tcp only.", listenerLabels, func(l listener.Stats) float64 { return float64(l.MovesRefused) }),
	counter("listener_received_bytes_total", "Bytes received from clients.", listenerLabels, func(l listener.Stats) float64 { return float64(l.BytesIn) }),
	counter("listener_sent_bytes_total", "Bytes sent to clients.", listenerLabels, func(l listener.Stats) float64 { return float64(l.BytesOut) }),
}

var snapshotMetrics = []metric[Snapshot]{
	gauge("draining", "1 while the gateway drains.", nil, func(s Snapshot) float64 { return oneIf(s.Draining) }),
	gauge("ready", "1 when every listener accepts connections.", nil, func(s Snapshot) float64 { return oneIf(ready(s)) }),
	gauge("engine_loops", "Threads that run fibers; 0 on the goroutine engine.", nil, func(s Snapshot) float64 { return float64(s.EngineStats.Loops) }),
	gauge("engine_connections", "Open connections on loops, of clients and upstreams.", nil, func(s Snapshot) float64 { return float64(s.EngineStats.Conns) }),
	gauge("engine_fibers", "Fibers that run or wait.", nil, func(s Snapshot) float64 { return float64(s.EngineStats.Fibers) }),
	gauge("engine_spare_fibers", "Fibers that ended and are kept for the next.", nil, func(s Snapshot) float64 { return float64(s.EngineStats.Spare) }),
	counter("engine_fiber_panics_total", "Fibers ended by a panic; the log has the stack.", nil, func(s Snapshot) float64 { return float64(s.EngineStats.Panics) }),
	counter("engine_loop_held_total", "Times a fiber held its loop for more than 10 ms; the log has the stack.", nil, func(s Snapshot) float64 { return float64(s.EngineStats.Held) }),
	counter("engine_ticks_total", "Ticks of the loops, each of which asks the kernel once.", nil, func(s Snapshot) float64 { return float64(s.EngineStats.Ticks) }),
	gauge("config_last_reload_successful", "0 when the last reload was refused.", nil, func(s Snapshot) float64 { return oneIf(s.Reloads.LastError == "") }),
}

var (
	acquireDesc       = desc("pool_acquire_seconds", "How long successful acquires took; those served at once count as 0.", poolLabels...)
	closedDesc        = desc("pool_closed_total", "Connections the pool closed, by reason.", append([]string{"reason"}, poolLabels...)...)
	healthyDesc       = desc("upstream_endpoint_healthy", "1 when the active health check passes, or there is none.", poolLabels...)
	ejectedDesc       = desc("upstream_endpoint_ejected", "1 while too many failures in a row keep the endpoint out.", poolLabels...)
	staleDesc         = desc("upstream_stale_total", "Idle connections that an HTTP server had closed, found when they were to be used.", poolLabels...)
	sourceFailingDesc = desc("upstream_source_failing", "1 while the endpoints cannot be looked up and the last ones are kept.", "upstream", "protocol")
	sourceFailedDesc  = desc("upstream_source_failed_total", "Times the endpoints could not be looked up.", "upstream", "protocol")
	overridesDesc     = desc("upstream_endpoint_overrides", "Endpoints that operators have added, drained, removed or given another weight, until that is taken back.", "upstream", "protocol")
	changesDesc       = desc("upstream_endpoint_changes_total", "Endpoints added, removed or altered while the gateway runs.", "change", "upstream", "protocol")
	failOpenDesc      = desc("upstream_fail_open", "1 while every endpoint is out and all of them are used.", "upstream", "protocol")
	roleDesc          = desc("upstream_endpoint_role", "1 for the role that the endpoint has; only of upstreams with a target.", append([]string{"role"}, poolLabels...)...)
	noRoleDesc        = desc("upstream_no_role", "1 while no endpoint has the role that the upstream's target wants, and its clients wait.", "upstream", "protocol")
	waitingDesc       = desc("upstream_waiting", "Callers that wait for no pool yet: for a role, to be pinned, or for the source's first report.", "upstream", "protocol")
	pausedDesc        = desc("upstream_paused", "1 while an operator has paused the upstream, and its clients wait.", "upstream", "protocol")
	errorsDesc        = desc("listener_errors_total", "Sessions and requests that failed, by reason.", append([]string{"reason"}, listenerLabels...)...)
	expiryDesc        = desc("listener_certificate_expiry_timestamp_seconds", "When the certificate of a listener with TLS expires.", listenerLabels...)
	listsExpireDesc   = desc("listener_revocation_list_expiry_timestamp_seconds", "When the first revocation list of clients' certificates expires, and clients are refused.", listenerLabels...)
	retiringDesc      = desc("retiring_active", "Remaining users of something that a reload has removed or replaced: sessions of a listener, sessions or connections of others.", "kind", "name")
	reloadsDesc       = desc("config_reloads_total", "Attempts to reload the configuration.", "result")
	logLostDesc       = desc("log_lines_lost_total", "Lines that are not in the log, by reason.", "reason")
	buildInfoDesc     = desc("build_info", "1; the version is in the labels.", "version", "goversion", "engine")
)

// Describe implements prometheus.Collector. Labelled counters of protocols and metrics of additions are not described:
// only the snapshot has them.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range poolMetrics {
		ch <- m.desc
	}
	for _, m := range listenerMetrics {
		ch <- m.desc
	}
	for _, m := range snapshotMetrics {
		ch <- m.desc
	}
	for _, d := range []*prometheus.Desc{acquireDesc, closedDesc, healthyDesc, ejectedDesc, roleDesc, staleDesc, failOpenDesc, noRoleDesc, overridesDesc, pausedDesc, sourceFailingDesc, sourceFailedDesc, changesDesc, errorsDesc, expiryDesc, retiringDesc, reloadsDesc, logLostDesc, buildInfoDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.snapshot()
	for _, m := range snapshotMetrics {
		send(ch, m.desc, m.kind, m.read(s))
	}
	send(ch, buildInfoDesc, prometheus.GaugeValue, 1, s.Version, runtime.Version(), s.Engine)
	send(ch, reloadsDesc, prometheus.CounterValue, float64(s.Reloads.Applied), "applied")
	send(ch, reloadsDesc, prometheus.CounterValue, float64(s.Reloads.Refused), "refused")
	for reason, n := range map[string]uint64{"slow_reader": s.Log.TooSlow, "disk_full": s.Log.DiskFull, "write_failed": s.Log.Failed} {
		send(ch, logLostDesc, prometheus.CounterValue, float64(n), reason)
	}
	for key, active := range retiringByName(s.Retiring) {
		send(ch, retiringDesc, prometheus.GaugeValue, float64(active), key[:]...)
	}
	for _, u := range s.Upstreams {
		collectUpstream(ch, u)
	}
	for _, a := range s.Additions {
		a.metrics(ch)
	}
	for _, l := range s.Listeners {
		for _, m := range listenerMetrics {
			send(ch, m.desc, m.kind, m.read(l), l.Name, l.Protocol)
		}
		if expires := s.Certificates[l.Name]; !expires.IsZero() {
			send(ch, expiryDesc, prometheus.GaugeValue, float64(expires.Unix()), l.Name, l.Protocol)
		}
		if expires := s.RevocationLists[l.Name]; !expires.IsZero() {
			send(ch, listsExpireDesc, prometheus.GaugeValue, float64(expires.Unix()), l.Name, l.Protocol)
		}
		errors := map[string]uint64{}
		for _, reason := range listener.Reasons() {
			errors[reason] = 0
		}
		maps.Copy(errors, l.Errors)
		for reason, n := range errors {
			send(ch, errorsDesc, prometheus.CounterValue, float64(n), reason, l.Name, l.Protocol)
		}
		for _, t := range l.Traffic {
			collectTraffic(ch, t, listenerLabels, []string{l.Name, l.Protocol})
		}
	}
}

// retiringByName adds up the entries of a kind and name: there is one for each reload that replaced
// it.
func retiringByName(list []Retiring) map[[2]string]int {
	sums := map[[2]string]int{}
	for _, r := range list {
		sums[[2]string{r.Kind, r.Name}] += r.Active
	}
	return sums
}

func collectUpstream(ch chan<- prometheus.Metric, u Upstream) {
	send(ch, failOpenDesc, prometheus.GaugeValue, oneIf(u.FailOpen), u.Name, u.Protocol)
	send(ch, noRoleDesc, prometheus.GaugeValue, oneIf(u.NoRole), u.Name, u.Protocol)
	send(ch, waitingDesc, prometheus.GaugeValue, float64(u.Waiting), u.Name, u.Protocol)
	send(ch, pausedDesc, prometheus.GaugeValue, oneIf(!u.PausedUntil.IsZero()), u.Name, u.Protocol)
	send(ch, sourceFailingDesc, prometheus.GaugeValue, oneIf(u.Source.LastError != ""), u.Name, u.Protocol)
	send(ch, sourceFailedDesc, prometheus.CounterValue, float64(u.Source.Failed), u.Name, u.Protocol)
	for change, n := range map[string]uint64{"added": u.Source.Added, "removed": u.Source.Removed, "altered": u.Source.Altered} {
		send(ch, changesDesc, prometheus.CounterValue, float64(n), change, u.Name, u.Protocol)
	}
	overridden := map[string]bool{}
	addresses := distinctAddresses(u.Endpoints)
	for i, e := range u.Endpoints {
		if e.Override != "" {
			overridden[e.Address] = true
		}
		if e.Absent {
			continue
		}
		labels := []string{u.Name, addresses[i], u.Protocol}
		if !e.Removed { // its health matters to no new session
			send(ch, healthyDesc, prometheus.GaugeValue, oneIf(e.Healthy), labels...)
			send(ch, ejectedDesc, prometheus.GaugeValue, oneIf(e.Ejected), labels...)
			send(ch, staleDesc, prometheus.CounterValue, float64(e.Stale), labels...)
			collectRole(ch, u.Target, e.Role, labels)
		}
		for _, m := range poolMetrics {
			send(ch, m.desc, m.kind, m.read(e.Pool), labels...)
		}
		for reason, n := range map[string]uint64{
			"idle": e.Pool.ClosedIdle, "lifetime": e.Pool.ClosedLifetime, "check": e.Pool.ClosedCheck,
			"reset": e.Pool.ClosedReset, "surplus": e.Pool.ClosedSurplus, "discarded": e.Pool.Discarded,
		} {
			send(ch, closedDesc, prometheus.CounterValue, float64(n), append([]string{reason}, labels...)...)
		}
		sendHistogram(ch, acquireDesc, acquireTimes(&e.Pool.AcquireSeconds), labels)
		if u.Traffic != nil {
			collectTraffic(ch, traffic.Snapshot{Schema: u.Traffic, Rows: []traffic.Row{e.Traffic}}, poolLabels, labels)
		}
	}
	send(ch, overridesDesc, prometheus.GaugeValue, float64(len(overridden)), u.Name, u.Protocol)
}

func send(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
	m, err := prometheus.NewConstMetric(d, kind, value, valid(labels)...)
	sendOr(ch, d, m, err)
}

func sendOr(ch chan<- prometheus.Metric, d *prometheus.Desc, m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(d, err)
	}
	ch <- m
}

// valid makes label values UTF-8, which Prometheus insists on.
func valid(labels []string) []string {
	out := make([]string, len(labels))
	for i, l := range labels {
		out[i] = strings.ToValidUTF8(l, "�")
	}
	return out
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
