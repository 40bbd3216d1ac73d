// Package fiber runs straight-line network code on coroutines: a loop per thread asks the kernel
// for everything its fibers wait for in one system call, by io_uring or epoll, and a switch between
// fibers costs a fraction of what the scheduler's does. The same code runs on goroutines where
// neither is available.
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
// that waits holds it, and with it every other fiber of the loop: a channel, a sync.Mutex that is
// held across I/O, a file, a name look-up, a long computation. Such things go into [Block]. Use a
// [Mutex] for a lock that is held across I/O, a [Group] for sync.WaitGroup, [Sleep] for time.Sleep,
// and a [TLSConn] for TLS that one fiber reads while another writes. All of these work on
// goroutines as well. A watchdog names a fiber that held its loop for more than 10 ms: certainly
// after 150 ms, and more likely the more often it does.
//
// A panic ends its fiber, is logged with its stack, and leaves the loop running; runtime.Goexit
// ends its fiber. Two things a fiber must not do while it waits: hold its thread
// (runtime.LockOSThread), which ends the program, and run inside a coroutine (iter.Pull), which
// panics.
//
// # Engines
//
// [Auto] takes the first that works: io_uring (Linux 6.1 or newer, where a container's seccomp
// filter allows it), epoll, goroutines. [Engine.Reason] says why. Loops need amd64 or arm64. kqueue
// (Darwin) must be asked for by name ([Kqueue]): it compiles, but has never been run. A loop is
// locked to its thread; while busy it waits in the kernel unknown to Go's scheduler, if GOMAXPROCS
// leaves the rest of the program a processor. With more loops than half the cores, set it to the
// number of cores and loops together.
//
// # Memory
//
// On io_uring the kernel gets only memory that is mapped outside the heap and owned by the loop
// until the operation has completed; slices given to Read and Write are copied and not kept. A
// waiting connection holds no buffer on any engine.
//
// # Design
//
// Nearly all CPU time of a proxy is the kernel's, so the engine minimizes system calls, wake-ups and
// copies:
//
//   - Receives are multishot: a request costs no read operation, and an idle pooled connection reports
//     its own death. A connection that carries bulk switches to single receives, which leave unread data
//     in the socket, until eight small messages follow each other; between two TCP connections bulk is
//     spliced, by CopyTo, or by a Transfer where it is framed. The first receive of a connection is a single one, because its traffic is not known yet.
//     A reset that arrives together with data is not reported by the kernel; loops poll for it every
//     10 ms, for all connections that received something.
//   - On epoll, small messages are gathered and sent at the end of a tick by io_submit, the kernel's
//     older asynchronous I/O. On sockets it completes before it returns, and containers often allow it
//     where they forbid io_uring. Without it, each message is its own system call, between which its
//     receiver can take the processor.
//   - Send errors are also reported to the reader: a socket reports a reset once, and after a failed send
//     the reader would see a clean end of the stream.
//   - Connections are accepted on demand, 16 a tick: connections that the kernel had accepted ahead would
//     be lost when a reload hands the socket on, and a flood must not starve existing sessions.
//   - A woken fiber runs next, in the same tick: the server connection that one session releases carries
//     the next session's statement in the system call that sends the first one's answer. A fiber that
//     this one wakes runs in the next tick, so that fibers waking each other cannot starve the kernel.
//   - Bulk runs last in a tick and takes at most one millisecond of it, so that a small message waits for
//     that millisecond and not for a 4 MiB splice of each bulk connection.
//   - A connection to or from a loopback address uses Reno where the system's default is BBR, whose
//     pacing timers were two thirds of the cost of bulk there; and beyond a few bulk connections each
//     gets a share of a safe amount of receive window. Otherwise TCP comes under memory pressure, drops
//     segments, and streams stall until retransmission timers fire.
//   - A connection has one timer, at the earliest deadline it was ever armed for, in a heap per loop, so
//     that moving a deadline later costs nothing.
//   - A busy loop waits with a raw system call that Go's scheduler does not see, and so keeps its
//     processor; the runtime's preemption signal interrupts it. An idle loop uses an ordinary call.
//   - GOMAXPROCS is left alone. With half as many loops as cores, a raw wait leaves the rest of the
//     program a processor; if all engines of the process together have as many loops as GOMAXPROCS,
//     there are no raw waits.
package fiber
