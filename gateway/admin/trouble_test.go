package admin_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// statusLines returns the trouble and sizing of a gateway's status, a line each.
func statusLines(t *testing.T, s admin.Snapshot) string {
	t.Helper()
	var status admin.Status
	if err := json.Unmarshal(get(newHandler(t, admin.Config{Snapshot: func() admin.Snapshot { return s }}), "/api/v1/status").Body.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(status.Trouble, status.Sizing...), "\n") + "\n"
}

// TestTroubleIsWhatIsWrongNow, or was within the last minute.
func TestTroubleIsWhatIsWrongNow(t *testing.T) {
	since, lately, long := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Now().Add(-10*time.Second), time.Now().Add(-2*time.Minute)
	endpoint := func(address string, e upstream.EndpointStatus) upstream.EndpointStatus { e.Address = address; return e }
	snapshot := admin.Snapshot{
		Version: "v1", Engine: "uring", Reloads: admin.Reloads{LastError: "c.yaml:3:1: no"}, Started: time.Now().Add(-3 * time.Hour),
		Log: admin.LogState{DiskFull: 3, Failed: 1, Error: "no space left"},
		Listeners: []listener.Stats{
			{Name: "db", Active: 100, MaxConns: 100, Queued: 6, Errors: map[string]uint64{"timeout": 2, "auth_failed": 1}},
			{Name: "web", Active: 100, MaxConns: 100}, {Name: "more"},
			{Name: "lite", LastErrors: map[string]time.Time{"disk_full": lately, "storage": lately, "internal": long, "timeout": lately}},
			{Name: "broken", LastErrors: map[string]time.Time{"internal": lately, "accept": lately}},
			{Name: "rush", Active: 9, MaxConns: 10, Errors: map[string]uint64{"rejected": 4}, LastRejected: lately},
			{Name: "calm", Active: 9, MaxConns: 10, Errors: map[string]uint64{"rejected": 4}, LastRejected: long},
		},
		Certificates:    map[string]time.Time{"web": since, "more": time.Now().AddDate(1, 0, 0)},
		RevocationLists: map[string]time.Time{"db": since, "web": time.Now().AddDate(1, 0, 0)},
		Upstreams: []admin.Upstream{{Protocol: "postgres", Reuses: true, Heavy: true, Status: upstream.Status{Name: "pg", FailOpen: true, Endpoints: []upstream.EndpointStatus{
			endpoint("a:1", upstream.EndpointStatus{Healthy: true, Failures: 2, LastError: "refused\x1b[2J", LastFailed: lately}),
			endpoint("b:1", upstream.EndpointStatus{Healthy: true, LastError: "was b", LastFailed: lately, Pool: pool.Stats{InUse: 20, MaxSize: 20, PeakInUse: 20}}),
			endpoint("c:1", upstream.EndpointStatus{LastError: "dead", LastFailed: long}),
			endpoint("old:1", upstream.EndpointStatus{Removed: true, LastError: "stopped by a rollout", LastFailed: lately, Pool: pool.Stats{InUse: 3}}),
			endpoint("d:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{InUse: 20, MaxSize: 20, Waiting: 7}}),
			endpoint("e:1", upstream.EndpointStatus{Healthy: true, Failures: 1, LastError: "was e", LastFailed: long, Pool: pool.Stats{TimedOut: 1, LastRefused: long}}),
			endpoint("f:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{MaxSize: 5, TimedOut: 2, Rejected: 1, LastRefused: lately}}),
			endpoint("small:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{MaxSize: 4, PeakInUse: 4, Acquired: 9000, Waited: 910, Opened: 10}}),
			endpoint("large:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{MaxSize: 50, PeakInUse: 7, Acquired: 9000, Waited: 7, Opened: 7, Since: time.Now().Add(-150 * time.Minute)}}),
			endpoint("new:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{MaxSize: 50, PeakInUse: 7, Acquired: 9000, Since: lately}}),
			endpoint("left:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{MaxSize: 4, PeakInUse: 4, Acquired: 1000, Waited: 40, Canceled: 9000}}),
			endpoint("outage:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{MaxSize: 4, PeakInUse: 4, Acquired: 90000, Waited: 40, TimedOut: 40}}),
			endpoint("right:1", upstream.EndpointStatus{Healthy: true, Pool: pool.Stats{MaxSize: 10, PeakInUse: 8, Acquired: 9000, Waited: 9}}),
		}}}},
	}
	stdout := statusLines(t, snapshot)
	for _, want := range []string{
		"reload was refused, the old configuration keeps running: c.yaml:3:1: no\n", "every endpoint is out",
		"endpoint a:1 is failing: refused\x1b[2J\n", "endpoint c:1 is unhealthy: dead\n",
		"listener web: its certificate has expired on 2026-01-02T03:04:05Z\n",
		"listener db refuses clients with certificates: a revocation list (client_crl) has expired on 2026-01-02T03:04:05Z\n",
		"listener db has no place left (max_conns 100), connections that wait: 6\n",
		"listener rush turned connections away 10s ago, there was no place left (max_conns 10)\n",
		"listener lite: a database file cannot be written, its disk is full, last 10s ago\n",
		"listener lite: a database file is damaged, or its disk fails; the log has its path, last 10s ago\n",
		"listener broken: a session, or accepting a connection, panicked, which is a bug; the log has the stack, last 10s ago\n",
		"listener broken: clients wait, because connections cannot be accepted, mostly for lack of open files (ulimit -n, LimitNOFILE); the log says why, last 10s ago\n",
		"upstream pg, endpoint d:1: every connection is in use (max_size 20), sessions that wait: 7\n",
		"upstream pg, endpoint f:1: acquires were refused 10s ago, no connection was free or could be opened in time (max_size 5); since the start: 3\n",
		"the log cannot be written, lines missing so far: 4: no space left\n",
		"upstream pg, endpoint small:1: max_size 4 is small: 10.0 % of the acquires waited",
		"upstream pg, endpoint large:1: max_size 50 is more than needed: never more than 7 were in use in 2 hours\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	for _, over := range []string{"was b", "was e", "stopped by a rollout", "endpoint b:1", "endpoint e:1", "endpoint right:1", "endpoint new:1", "endpoint left:1", "endpoint outage:1", "listener more", "listener web has", "listener calm", "listener lite: a session"} {
		if strings.Contains(stdout, over) {
			t.Errorf("%q, which is over or never was trouble, is in\n%s", over, stdout)
		}
	}
}

// TestWarmConnectionsEarnTheirKeep, or the status says that they do not.
func TestWarmConnectionsEarnTheirKeep(t *testing.T) {
	endpoint := func(address string, p pool.Stats) upstream.EndpointStatus {
		p.MaxSize, p.MaxWarm = 100, max(p.MaxWarm, p.MinIdle)
		return upstream.EndpointStatus{Address: address, Healthy: true, Pool: p}
	}
	near, far := 45*time.Microsecond, 12041*time.Microsecond
	endpoints := []upstream.EndpointStatus{
		endpoint("near:1", pool.Stats{MinIdle: 8, Acquired: 5000, OpenTime: near}),
		endpoint("127.0.0.1:7", pool.Stats{MinIdle: 1, Acquired: 5000, OpenTime: far}),
		endpoint("unix:/run/s", pool.Stats{MinIdle: 1, Acquired: 5000, OpenTime: far}),
		endpoint("cold:1", pool.Stats{Acquired: 5000, Waited: 5000, OpenTime: near}),
		endpoint("far:1", pool.Stats{MinIdle: 2, Acquired: 5000, Waited: 1550, OpenTime: far}),
		endpoint("full:1", pool.Stats{MinIdle: 2, WarmTarget: 32, MaxWarm: 32, Acquired: 5000, Waited: 1550, OpenTime: far}),
		endpoint("enough:1", pool.Stats{MinIdle: 2, Acquired: 5000, Waited: 400, OpenTime: far}),
		endpoint("new:1", pool.Stats{MinIdle: 2, Acquired: 900, Waited: 900, OpenTime: far}),
		endpoint("down:1", pool.Stats{MinIdle: 2, Acquired: 5000}),
	}
	got := statusLines(t, admin.Snapshot{Upstreams: []admin.Upstream{
		{Protocol: "tcp", Status: upstream.Status{Name: "raw", Endpoints: endpoints}},
		{Protocol: "http", Reuses: true, Status: upstream.Status{Name: "web", Endpoints: endpoints}},
	}})
	want := "upstream raw, endpoint near:1: min_idle 8 gains nothing: connecting takes 45µs, as long as what a connection kept ready costs; leave it out\n" +
		"upstream raw, endpoint 127.0.0.1:7: min_idle 1 gains nothing: connecting takes 12.041ms, as long as what a connection kept ready costs; leave it out\n" +
		"upstream raw, endpoint unix:/run/s: min_idle 1 gains nothing: connecting takes 12.041ms, as long as what a connection kept ready costs; leave it out\n" +
		"upstream raw, endpoint far:1: min_idle 2 is small: 31 % of the sessions found no connection ready and waited; connecting takes 12.041ms\n" +
		"upstream raw, endpoint full:1: max_warm 32 is small: 31 % of the sessions found no connection ready and waited; connecting takes 12.041ms\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestNoWarningsAreAnEmptyList: a program that reads the status need not expect null.
func TestNoWarningsAreAnEmptyList(t *testing.T) {
	body := get(newHandler(t, admin.Config{Snapshot: func() admin.Snapshot { return admin.Snapshot{} }}), "/api/v1/status").Body.String()
	if !regexp.MustCompile(`"last_warnings":\s*\[\]`).MatchString(body) {
		t.Error(body)
	}
}
