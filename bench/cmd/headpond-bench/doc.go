// Command headpond-bench measures Headpond and its peers on this machine. `headpond bench` runs it.
//
//	headpond-bench engine            # the gateway's engines beside HAProxy, nginx and PgBouncer
//	headpond-bench -quick all
//	headpond-bench compare A/results.json B/results.json
//
// To measure it needs Linux; compare, report and tables work everywhere. Exit codes: 0 done, 1 a problem or a regression, 2 wrong usage,
// 130 interrupted.
package main
