// Command headpond-bench measures Headpond and its peers on this machine. `headpond bench` runs it.
//
//	headpond-bench engine            # the gateway's engines beside HAProxy, nginx and PgBouncer
//	headpond-bench -quick all
//	headpond-bench compare A/results.json B/results.json
//
// Measuring needs Linux; compare, report and tables work on every system. Exit codes: 0 success, 1 failure or
// regression, 2 wrong usage, 130 interrupted.
package main
