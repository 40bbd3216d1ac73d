// Package integration tests the headpond program as users run it: the built binary with a configuration file, before
// real PostgreSQL servers, HTTP and TCP servers, MariaDB and Exim, with psql, pgbench, curl, h2spec, nc, pgx and the
// clients of the directory clients, and with real faults: killed backends, vanished clients, invalid input, signals,
// Toxiproxy.
//
// It is its own module, so that its clients are not dependencies of the core. Two binaries are
// built once per run: the released one, and one with the race detector for the tests of faults.
// Tests of memory use the released one.
//
// No test sleeps: it polls a condition until a deadline.
package integration
