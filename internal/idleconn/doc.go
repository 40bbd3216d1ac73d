// Package idleconn looks at connections that wait in a pool, without waiting: whether they are open, and whether
// anything has arrived on them. It is the one rule for connections of package net, of an engine, and for TLS over either.
package idleconn
