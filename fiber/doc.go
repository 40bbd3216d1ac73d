// Package fiber runs straight-line network code on coroutines: a loop per thread asks the
// kernel for everything its fibers wait for in one system call, by io_uring or epoll, and a
// switch between fibers costs a fraction of what the scheduler's does. The same code runs on
// goroutines where neither is to be had.
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
// Connections, listeners and dialers of the engine wait without holding the loop. Everything
// else that waits holds it, and with it every other fiber of the loop: a channel, a sync.Mutex
// that somebody holds across I/O, a file, a name look-up, a long computation. Such things go into
// [Block]; a lock that is held across I/O is a [Mutex], a [Group] stands for a sync.WaitGroup and
// [Sleep] for time.Sleep; TLS whose one fiber reads while another writes is a [TLSConn]. All of these work on a goroutine as well. A watchdog names a fiber that
// held its loop for more than 10 ms.
//
// A panic ends its fiber, is logged with its stack, and leaves the loop running; runtime.Goexit ends
// its fiber. Two things a fiber must not do while it waits: hold its thread (runtime.LockOSThread), which
// ends the program, and be within a coroutine of its own (iter.Pull), which panics.
//
// # Engines
//
// [Auto] takes the first that works: io_uring (Linux 6.1 or newer, where a container's seccomp
// filter allows it), epoll, goroutines. [Engine.Reason] says why. A loop is locked to its thread;
// while it is busy it waits in the kernel without telling Go's scheduler, if GOMAXPROCS leaves
// the rest of the program a processor. With more loops than half the cores, set it to the number of
// cores and loops together.
//
// # Memory
//
// On io_uring the kernel is handed only memory that is mapped outside the heap and owned by the
// loop until the operation has completed; slices given to Read and Write are copied and not kept.
// A connection that waits holds no buffer on any engine.
package fiber
