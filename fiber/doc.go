// Package fiber runs blocking-style network code on coroutines. Each loop is a thread that runs
// many fibers. It waits for the I/O of all of them with one system call, by io_uring or epoll, and
// a switch between fibers costs a fraction of a switch between goroutines. Where neither is
// available, the same code runs on goroutines.
//
//	engine, _ := fiber.New(fiber.Config{})
//	defer engine.Close()
//	l, _ := engine.Listen("tcp", "127.0.0.1:7000")
//	fiber.Serve(l, func(c net.Conn) {
//		defer c.Close()
//		io.Copy(c, c)
//	})
//
// # What a fiber may do
//
// Connections, listeners and dialers of the engine wait without holding the loop. Everything else
// that waits holds the loop, and so stops all of its other fibers: a channel, a sync.Mutex that is
// held across I/O, a file, a name lookup, a long computation. Run such code in [Block]. Use a
// [Mutex] for a lock that is held across I/O, a [Group] instead of sync.WaitGroup, [Sleep] instead
// of time.Sleep, and a [TLSConn] for a TLS connection that one fiber reads while another writes.
// All of these also work on goroutines. A watchdog logs the stack of a fiber that holds its loop
// for more than 10 ms. It samples, so it finds a single hold for certain only after 150 ms;
// repeated shorter ones it finds sooner or later.
//
// A panic ends only its fiber, and is logged with its stack. runtime.Goexit also ends only its
// fiber. While a fiber waits, it must not be locked to its thread (runtime.LockOSThread), which
// ends the program, nor be inside a coroutine (iter.Pull), which panics.
//
// # Engines
//
// [Auto] chooses the first that works: io_uring (Linux 6.1 or newer, if a container's seccomp
// filter permits it), epoll, goroutines. [Engine.Reason] says why. Loops need amd64 or arm64.
// [Kqueue] (Darwin) must be requested: it compiles, but has never been run. A loop is locked to its
// thread. A busy loop waits in the kernel without telling Go's scheduler, if GOMAXPROCS leaves the
// rest of the program a processor. With more loops than half the cores, set GOMAXPROCS to the
// number of cores plus the number of loops.
//
// # Memory
//
// On io_uring the kernel only gets memory that is mapped outside the heap, and that the loop owns
// until the operation has completed. Read and Write copy the caller's slices, and do not keep them.
// On every engine, a waiting connection holds no buffer.
//
// # Design
//
// A proxy uses nearly all of its CPU time in the kernel, so the engine minimizes system calls,
// wake-ups and copies:
//
//   - Receives on io_uring are multishot: a request costs no read operation, and the loop learns
//     when an idle pooled connection ends. For bulk data a connection switches to single receives,
//     which leave unread data in the socket, until eight small messages in a row have arrived. The
//     first receive of a connection is also a single one, because its traffic is not known yet.
//     Bulk data between two TCP connections is spliced, by CopyTo, or by a Transfer if it is
//     framed. The kernel does not report a reset that arrives together with data. Loops therefore
//     poll for resets every 10 ms, on all connections that have received something. A loop without
//     other events does so after 100 ms.
//   - On epoll, small messages are gathered, and sent together at the end of a tick by io_submit,
//     the kernel's older interface for asynchronous I/O. On sockets the call is synchronous, and
//     containers often permit it where they forbid io_uring. Without it each message takes a system
//     call, after which the message's receiver may take the processor.
//   - Send errors are also reported to the reader: a socket reports a reset once, and after a failed send
//     the reader would see a clean end of the stream.
//   - At most 16 connections are accepted in a tick, so that a flood of them does not starve
//     existing sessions. The kernel does not accept ahead of Accept, because such connections would
//     be lost when a reload passes the socket to another listener.
//   - A woken fiber runs next, in the same tick. For example, when a session releases a server
//     connection, the next session's statement is sent by the same system call as the first
//     session's answer. Fibers that the woken fiber wakes run in the next tick, so that fibers that
//     wake each other cannot keep the loop from its I/O.
//   - Bulk data is moved last in a tick, for at most one millisecond. A small message waits for
//     that millisecond, not for a 4 MiB splice of each bulk connection.
//   - If the system's congestion control is BBR, connections to or from a loopback address use
//     Reno: BBR's pacing timers were two thirds of the cost of bulk data there. With more than a
//     few bulk connections, each one gets a share of a safe total receive window. Otherwise TCP
//     comes under memory pressure and drops segments, and streams stall until retransmission timers
//     fire.
//   - A connection has one timer in the heap of its loop. If a deadline moves later, the timer is
//     not changed; it is armed again when it fires, so moving a deadline costs nothing.
//   - A busy loop keeps its processor while it waits: it uses a raw system call, which Go's
//     scheduler does not see. The runtime's preemption signal interrupts it. A loop that has had no
//     event for 50 ms, or is interrupted while goroutines wait for a processor, uses an ordinary
//     system call. If it did so between the events of a light load, the runtime's monitor would
//     wake up every 20 µs for a while after each.
//   - The engine does not change GOMAXPROCS. With half as many loops as cores, raw waits leave the
//     rest of the program processors. If all engines of the process together have as many loops as
//     GOMAXPROCS, there are no raw waits.
package fiber
