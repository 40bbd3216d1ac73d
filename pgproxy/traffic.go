package pgproxy

import (
	"bytes"
	"slices"
	"time"

	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/traffic"
)

// Timings of a client; endpoints have the first one only. Most transactions have one request, and are counted once:
// timeAlone is the time of both the request and the transaction.
const (
	timeAlone  = iota // requests that are a whole transaction; of endpoints: every request, from when it could be sent
	timeWithin        // other requests, from their first message to ReadyForQuery
	timeBlocks        // transactions of several requests
	timeWaits         // the wait for a server connection; atOnce counts leases that the fast path got at once
	clientTimings
	endpointTimings = timeWithin
)

// Counts of a client: its errors by class, and these. Endpoints have their errors by class, and serversOwn.
var (
	moreQueries = len(errorClasses)     // queries after the first one in requests that are a whole transaction, and all queries of others
	atOnce      = len(errorClasses) + 1 // leases without a wait: a count is cheaper than a timing of 0
	serious     = len(errorClasses) + 2 // those of the errors that isFailure is about

	serversOwn = len(errorClasses) // those of an endpoint's errors that isServersOwn is about
)

// errorClasses are PostgreSQL's error classes, sorted: the first two characters of a SQLSTATE. The last one is for
// unknown classes.
var errorClasses = []string{
	"03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23", "24", "25", "26", "27", "28", "2B", "2D", "2F",
	"34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54", "55", "57", "58", "72", "F0", "HV", "P0", "XX", traffic.Other,
}

// alwaysShown are the classes whose series begin at 0, so that alerts see the first error: connections, constraints,
// deadlocks, wrong statements, resources, shutdown, the system.
var alwaysShown = []string{"08", "23", "40", "42", "53", "57", "58", "XX"}

// classOf returns the index in errorClasses for a SQLSTATE.
func classOf[T string | []byte](code T) int {
	if len(code) >= 2 {
		if i, ok := slices.BinarySearch(errorClasses[:len(errorClasses)-1], string(code[:2])); ok {
			return i
		}
	}
	return len(errorClasses) - 1
}

// maxUsers bounds the pairs of user and database that are counted by name, per listener: each has its own series.
const maxUsers = 100

var clientTraffic = &traffic.Schema{
	Labels: []string{"upstream", "user", "database"}, Limit: maxUsers, Kept: 1, Counts: len(errorClasses) + 3, Timings: clientTimings,
	Views: []traffic.View{{
		Labels: []string{"upstream"},
		Counters: append(byClass("postgres_errors_total", "Errors sent to clients, by class of SQLSTATE."),
			traffic.Counter{Name: "postgres_failures_total", Help: "Those errors sent to clients that concern the server or the gateway.", Read: traffic.Count(serious)},
			traffic.Counter{Name: "postgres_transactions_total", Help: "Transactions that ended.", Read: traffic.Counted(timeAlone, timeBlocks)},
			traffic.Counter{Name: "postgres_queries_total", Help: "Queries that were answered.", Read: queries},
		),
		Histograms: []traffic.Timer{
			{Name: "postgres_request_seconds", Help: "Time from a request's first message to ReadyForQuery.", Read: traffic.Time(timeAlone, timeWithin)},
			{Name: "postgres_transaction_seconds", Help: "Time from a transaction's first message to its end.", Read: traffic.Time(timeAlone, timeBlocks)},
			{Name: "postgres_wait_seconds", Help: "Time that transactions (in session mode: sessions) waited for a server connection.", Read: waited},
		},
	}, {
		Labels: []string{"upstream", "user", "database"},
		Counters: []traffic.Counter{
			{Name: "postgres_user_transactions_total", Help: "Transactions that ended.", Read: traffic.Counted(timeAlone, timeBlocks)},
			{Name: "postgres_user_queries_total", Help: "Queries that were answered.", Read: queries},
			{Name: "postgres_user_errors_total", Help: "Errors sent to the user.", Read: errorsOf},
			{Name: "postgres_user_request_seconds_total", Help: "Time of the user's requests.", Read: seconds(timeAlone, timeWithin)},
			{Name: "postgres_user_wait_seconds_total", Help: "Time that the user waited for server connections.", Read: seconds(timeWaits)},
		},
	}},
	Summary: &traffic.Summary{
		Unit: "transactions", Done: traffic.Counted(timeAlone, timeBlocks), Failed: traffic.Count(serious), Time: traffic.Time(timeAlone, timeBlocks),
	},
}

var endpointTraffic = &traffic.Schema{
	Counts: len(errorClasses) + 1, Timings: endpointTimings,
	Views: []traffic.View{{
		Counters: byClass("postgres_upstream_errors_total", "Errors that an endpoint answered, by class of SQLSTATE."),
		Histograms: []traffic.Timer{{
			Name: "postgres_upstream_request_seconds", Help: "Time from when a request could be sent to ReadyForQuery.", Read: traffic.Time(timeAlone),
		}},
	}},
	Summary: &traffic.Summary{
		Unit: "requests", Done: traffic.Counted(timeAlone), Failed: traffic.Count(serversOwn), Time: traffic.Time(timeAlone),
		Failure: "ended with an error of the server itself, of SQLSTATE class 53, 58, F0 or XX (53100: its disk is full); its log has the message",
	},
}

func byClass(name, help string) []traffic.Counter {
	list := make([]traffic.Counter, len(errorClasses))
	for i, class := range errorClasses {
		list[i] = traffic.Counter{
			Name: name, Help: help, Label: "class", Value: class, Read: traffic.Count(i), Sparse: !slices.Contains(alwaysShown, class),
		}
	}
	return list
}

func queries(r *traffic.Row) float64 {
	return float64(r.Timings[timeAlone].Count() + r.Counts[moreQueries])
}

func errorsOf(r *traffic.Row) (n float64) {
	for _, c := range r.Counts[:len(errorClasses)] {
		n += float64(c)
	}
	return n
}

func seconds(timings ...int) func(*traffic.Row) float64 {
	read := traffic.Time(timings...)
	return func(r *traffic.Row) float64 {
		h := read(r)
		return h.Sum.Seconds()
	}
}

// waited returns the histogram of waits, including leases without a wait.
func waited(r *traffic.Row) traffic.Histogram {
	h := r.Timings[timeWaits]
	h.Counts[0] += r.Counts[atOnce]
	return h
}

// Meter measures the requests and transactions of a client. It belongs to the session of a Backend, as the Client does.
type Meter struct {
	shard   *traffic.Shard
	index   int
	asked   time.Duration // when the request began, by clock; 0 = none is under way
	opened  time.Duration // when the open transaction began; set once its first request has ended; 0 = none is open
	queries uint64        // queries answered since the last ReadyForQuery
}

// Meter returns a new Meter that counts for the client.
func (c *Client) Meter() Meter {
	index := traffic.ShardOf(c.Conn.Loop())
	return Meter{shard: c.traffic.Shard(index), index: index}
}

// Asked notes that a message of the client has come. Sessions call it for each one.
func (m *Meter) Asked() {
	if m.asked == 0 {
		m.asked = clock()
	}
}

// Query counts an answered query.
func (m *Meter) Query() { m.queries++ }

// Ready notes a ReadyForQuery for the client. Sessions call it for each one. more means that the client has sent
// requests that are not answered yet.
func (m *Meter) Ready(status pgwire.TxStatus, more bool) { m.ready(status, more) }

// ready is Ready. It returns the time by clock; 0 = no request was under way.
func (m *Meter) ready(status pgwire.TxStatus, more bool) (now time.Duration) {
	idle := status == pgwire.TxIdle
	if m.asked > 0 && (m.queries > 0 || m.opened > 0) {
		now = clock()
		took := now - m.asked
		if idle && m.opened == 0 {
			m.shard.Observe(timeAlone, took)
			m.queries--
		} else {
			m.shard.Observe(timeWithin, took)
		}
		if m.queries > 0 {
			m.shard.Add(moreQueries, m.queries)
		}
		switch {
		case !idle && m.opened == 0:
			m.opened = m.asked
		case idle && m.opened > 0:
			m.shard.Observe(timeBlocks, now-m.opened)
			m.opened = 0
		}
	}
	m.queries = 0
	if !more {
		m.asked = 0
	}
	return now
}

// CountSQLState counts an error for the client by its SQLSTATE. Client.Error and Client.Fatal call it.
func (c *Client) CountSQLState(code string) {
	shard := c.traffic.Shard(traffic.ShardOf(c.Conn.Loop()))
	shard.Add(classOf(code), 1)
	if isFailure(code) {
		shard.Add(serious, 1)
	}
}

// countFailure counts a failure whose SQLSTATE does not say that it is one.
func (c *Client) countFailure() {
	c.traffic.Shard(traffic.ShardOf(c.Conn.Loop())).Add(serious, 1)
}

// isFailure reports whether an error concerns the server or the gateway, so that an operator has to act: no connection, no
// resources, a crash or a damaged file. Others are of what clients ask for, cancel or mistype. A session that an operator
// ends has StateAdminShutdown; see reportLost for a server's.
func isFailure[T string | []byte](code T) bool {
	if len(code) < 2 {
		return false
	}
	switch string(code[:2]) {
	case "08":
		return string(code) != pgwire.StateProtocolViolation
	case "53", "58", "F0", "XX":
		return true
	}
	return string(code) == pgwire.StateCrashShutdown || string(code) == pgwire.StateCannotConnectNow
}

// isServersOwn reports whether an error of an endpoint is the server's own. Two of these classes are not: any client can cause
// the internal error XX000, by which extensions such as PostGIS answer malformed input, and 53400, by a query that is larger
// than temp_file_limit.
func isServersOwn[T string | []byte](code T) bool {
	if len(code) < 2 || string(code) == "XX000" || string(code) == "53400" {
		return false
	}
	return slices.Contains([]string{"53", "58", "F0", "XX"}, string(code[:2]))
}

// countAt counts an error of the endpoint that the session uses.
func (s *session) countAt(code []byte) {
	shard := s.lease.Traffic().Shard(s.meter.index)
	if shard.Add(classOf(code), 1); isServersOwn(code) {
		shard.Add(serversOwn, 1)
	}
}

// measure counts the request that ReadyForQuery has ended, and returns its end, by clock; 0 = no request was under
// way. mu is held if a server reader runs.
func (s *session) measure(status pgwire.TxStatus) (now time.Duration) {
	st := &s.machine.st
	s.meter.queries += uint64(st.answered)
	st.answered = 0
	asked := s.meter.asked
	if now = s.meter.ready(status, st.ends > 0 && !(st.ends == 1 && st.answersQuestion())); now > 0 {
		s.lease.Traffic().Shard(s.meter.index).Observe(timeAlone, now-max(asked, s.leasedAt))
	}
	return now
}

// count counts a judged message of the server, unless the gateway caused it. mu is held if a server reader runs.
func (s *session) count(msg message, act action) {
	switch {
	case msg.typ == pgwire.TypeReadyForQuery && act.do != take:
		s.measure(pgwire.TxStatus(firstByte(msg.body)))
	case msg.typ == pgwire.TypeErrorResponse && act.do != fatal && !s.machine.st.failed.silent:
		s.countError(msg.body)
	}
}

// countError counts an error of the server. b is the beginning of its body.
func (s *session) countError(b []byte) {
	_, code, _ := bytes.Cut(b, []byte("\x00C"))
	code, _, _ = bytes.Cut(code, []byte{0})
	s.meter.shard.Add(classOf(code), 1)
	if isFailure(code) {
		s.meter.shard.Add(serious, 1)
	}
	s.countAt(code)
}

// countUpstreams notes the upstream of each of set's databases, and makes its series appear before its first use.
func (p *Proxy) countUpstreams(set *settings) {
	set.upstreams = make(map[string]string, len(set.Databases)+1)
	for database, b := range set.Databases {
		name := b.Status().Name
		set.upstreams[database] = name
		p.traffic.Cell(name, traffic.Other, traffic.Other)
	}
	if b := set.Console.Backend; b != nil {
		set.upstreams[set.Console.Database] = b.Name()
	}
}

// cell returns the cell in which a client's traffic is counted.
func (set *settings) cell(p *Proxy, user, database string) *traffic.Cell {
	name, ok := set.upstreams[database]
	if !ok {
		name = set.upstreams["*"]
	}
	return p.traffic.Cell(name, user, database)
}
