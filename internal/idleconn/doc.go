// Package idleconn looks at connections that wait in a pool, without waiting: whether they are open, and whether
// anything has arrived on them. Under TLS that takes reading, because what has arrived may be TLS's own.
package idleconn
