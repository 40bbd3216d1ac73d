// Package integration tests the headpond program as users run it: the built binary with
// a configuration file, before real PostgreSQL servers, HTTP and TCP servers, MariaDB and Exim, with psql,
// pgbench, curl, h2spec, nc, pgx and the clients of the directory clients, and with the faults of real life:
// killed backends, vanished clients, wrong input, signals.
//
// It is a module of its own, so that its clients never enter the core's dependencies. Two binaries
// are built once per run: the released one, and one with the race detector for the tests of faults.
// Tests that measure the released binary (memory) say so.
//
// Nothing waits blindly: a test states a condition and polls it until a deadline.
package integration
