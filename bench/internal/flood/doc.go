// Package flood makes connections that vanish at once, as in an attack or behind a client that has lost its patience.
// It floods addresses of this machine's loopback only, and every flood ends by itself.
package flood
