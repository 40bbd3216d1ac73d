// Package pool is a typed resource pool: connections, handles, anything that
// is expensive to open and safe to reuse.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"net"
//
//		"github.com/headpond/headpond/pool"
//	)
//
//	func main() {
//		ln, _ := net.Listen("tcp", "127.0.0.1:0")
//		p, err := pool.New(pool.Config[net.Conn]{
//			Name: "echo",
//			Open: func(ctx context.Context) (net.Conn, error) {
//				var d net.Dialer
//				return d.DialContext(ctx, "tcp", ln.Addr().String())
//			},
//			Close:  func(c net.Conn) { c.Close() },
//			Limits: pool.Limits{MaxSize: 4},
//		})
//		if err != nil {
//			panic(err)
//		}
//		defer p.Close()
//		err = p.With(context.Background(), func(c net.Conn) error {
//			fmt.Println("connected to", c.RemoteAddr())
//			return nil
//		})
//		fmt.Println(err)
//	}
//
// # Behaviour
//
// An idle resource is leased last-in first-out, so that the surplus ages out. When none is idle the
// caller waits, first come first served, for a released resource (it is handed over directly, no
// other caller can take it in between) or a new one, whichever is earlier. The pool's goroutines
// open resources, never under its lock and several at a time; a resource whose caller has given up
// is kept for the next.
//
// Callers can belong to flows, such as the clients of a proxy, by a FlowParker. Flows with waiting
// callers take turns, and a caller that can say until when it needs the resource is refused at once
// when its turn would come later.
//
// Config.Affinity gives resources an affinity, such as the event loop that a connection belongs to.
// Callers then prefer resources of their affinity, and may overtake callers that have waited up to
// a millisecond longer. Of other flows, only callers that came within a millisecond are overtaken.
//
// A holder that will come back soon, and is served better by the same resource, releases it by
// Lease.Linger: for a bounded time no other caller gets it, and later others get it last.
//
// An event loop cannot wait in Acquire: Begin leases at once, or queues the caller and notifies it
// later, and TryRelease releases without waiting for a Close.
//
// # When opening fails
//
// The pool backs off exponentially, with jitter, from 10 ms to 1 s, and tries one resource at a
// time until one opens. One failed open fails one waiting caller; a second in a row fails every
// caller that waits, with the cause (ErrOpen), and new ones at once until the next attempt. While
// other resources are open, and so may be released, callers wait for those instead and fail after
// three attempts in a row during which no caller was served.
//
// # Callbacks
//
// Open, Check, Reset and Close run outside the pool's lock. One that panics (or
// calls runtime.Goexit) does not harm the pool: a panic in Open counts as a
// failed open with a *PanicError as its cause; in Check or Reset the resource is
// closed as if the callback had returned an error; in Close the resource counts
// as closed; in a hook nothing changes. Each is reported to Hooks.Panicked, or
// else logged with slog.
//
// # Concurrency
//
// Every method of Pool and Stats is safe for use by several goroutines. A Lease belongs to its
// holder. The pool starts goroutines only to open, check and close resources and to run its timer,
// and none is left after Close once every lease is released and the running callbacks have
// returned.
package pool
