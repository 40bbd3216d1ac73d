package console

import (
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/pgproxy"
)

// The columns of the statistics: of all, of SHOW STATS with the prefixes total_ and avg_, and of SHOW TOTALS.
const (
	statNames = "server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time"
	totals    = "server_assignment_count xact_count query_count received sent xact_time query_time wait_time client_parse_count server_parse_count bind_count client_login_count"
	averages  = "server_assignment_count xact_count query_count recv sent xact_time query_time wait_time client_parse_count server_parse_count bind_count client_login_count"
	totalKeys = "server_assignment_count xact_count query_count client_bytes server_bytes xact_time query_time wait_time ps_client_parse_count ps_server_parse_count ps_bind_count client_login_count"
)

// prefixed returns names with a prefix each.
func prefixed(prefix, names string) string {
	var b strings.Builder
	for name := range strings.FieldsSeq(names) {
		b.WriteString(prefix + name + " ")
	}
	return b.String()
}

// amount is what clients have used.
type amount struct {
	leases, transactions, queries, in, out int64
	inTransaction, inQuery, waited         time.Duration
}

func (a *amount) add(u *pgproxy.Usage) {
	a.leases, a.transactions, a.queries = a.leases+int64(u.Leases), a.transactions+int64(u.Transactions), a.queries+int64(u.Queries)
	a.in, a.out = a.in+int64(u.BytesIn), a.out+int64(u.BytesOut)
	a.inTransaction, a.inQuery, a.waited = a.inTransaction+u.TransactionTime, a.inQuery+u.QueryTime, a.waited+u.WaitTime
}

// total returns the values of the columns total_*. Messages that prepare statements, and logins, are not counted.
func (a *amount) total() row {
	return row{
		a.leases, a.transactions, a.queries, a.in, a.out, a.inTransaction.Microseconds(), a.inQuery.Microseconds(), a.waited.Microseconds(), 0, 0, 0, 0,
	}
}

// average returns the values of the columns avg_*, from what was used then, some time ago: counts and bytes for each
// second, and the time of a transaction, of a query and of a wait.
func (a *amount) average(then *amount, ago time.Duration) row {
	rate := func(now, then int64) int64 {
		if ago <= 0 {
			return 0
		}
		return int64(float64(max(now-then, 0)) / ago.Seconds())
	}
	mean := func(now, then time.Duration, n int64) int64 {
		if n <= 0 {
			return 0
		}
		return max(now-then, 0).Microseconds() / n
	}
	return row{
		rate(a.leases, then.leases), rate(a.transactions, then.transactions), rate(a.queries, then.queries), rate(a.in, then.in), rate(a.out, then.out),
		mean(a.inTransaction, then.inTransaction, a.transactions-then.transactions), mean(a.inQuery, then.inQuery, a.queries-then.queries),
		mean(a.waited, then.waited, a.leases-then.leases), 0, 0, 0, 0,
	}
}

// byDatabase adds up usage by database.
func byDatabase(list []pgproxy.Usage) map[string]*amount {
	sums := map[string]*amount{}
	for i := range list {
		a := sums[list[i].Database]
		if a == nil {
			a = &amount{}
			sums[list[i].Database] = a
		}
		a.add(&list[i])
	}
	return sums
}

// eachStat calls fn for each database that is configured or has been used.
func (v *view) eachStat(fn func(name string, total, average row)) {
	now, then, ago := v.cfg.Gateway.Usage()
	sums, earlier := byDatabase(now), byDatabase(then)
	seen := map[string]*clientCount{}
	for name := range sums {
		seen[name] = nil
	}
	for _, name := range v.names(seen) {
		a, before := sums[name], earlier[name]
		if a == nil && name == "*" {
			continue // its clients have names
		}
		if a == nil {
			a = &amount{}
		}
		if before == nil {
			before = &amount{}
		}
		fn(name, a.total(), a.average(before, ago))
	}
}

func (v *view) stats(r *result) {
	v.eachStat(func(name string, total, average row) {
		r.rows = append(r.rows, slices.Concat(row{name}, total, average))
	})
}

func (v *view) statsTotals(r *result) {
	v.eachStat(func(name string, total, _ row) { r.rows = append(r.rows, append(row{name}, total...)) })
}

func (v *view) statsAverages(r *result) {
	v.eachStat(func(name string, _, average row) { r.rows = append(r.rows, append(row{name}, average...)) })
}

// totals is SHOW TOTALS.
func (v *view) totals(r *result) {
	now, then, ago := v.cfg.Gateway.Usage()
	var all, before amount
	for i := range now {
		all.add(&now[i])
	}
	for i := range then {
		before.add(&then[i])
	}
	keys := strings.Fields(totalKeys)
	for i, value := range slices.Concat(all.total(), all.average(&before, ago)) {
		prefix := "total_"
		if i >= len(keys) {
			prefix = "avg_"
		}
		r.rows = append(r.rows, row{prefix + keys[i%len(keys)], value})
	}
}
