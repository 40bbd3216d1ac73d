// Package mux carries messages and byte streams between two processes: any
// number of channels over one connection, at about the price of writing to the
// connection itself.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"net"
//
//		"github.com/headpond/headpond/mux"
//	)
//
//	func main() {
//		ctx := context.Background()
//		here, there := net.Pipe() // or TCP, TLS, a Unix socket
//		go func() {
//			server, err := mux.Server(ctx, there, mux.Config{})
//			if err != nil {
//				panic(err)
//			}
//			ch, err := server.Accept(ctx)
//			if err != nil {
//				panic(err)
//			}
//			m, err := ch.Receive(ctx)
//			if err != nil {
//				panic(err)
//			}
//			defer m.Release()
//			ch.Send(ctx, append([]byte("hello, "), m.Bytes()...))
//		}()
//		client, err := mux.Client(ctx, here, mux.Config{})
//		if err != nil {
//			panic(err)
//		}
//		defer client.Close()
//		ch, err := client.Open(ctx, "greetings")
//		if err != nil {
//			panic(err)
//		}
//		ch.Send(ctx, []byte("mux"))
//		m, err := ch.Receive(ctx)
//		if err != nil {
//			panic(err)
//		}
//		fmt.Printf("%s\n", m.Bytes()) // hello, mux
//		m.Release()
//	}
//
// # Sessions and channels
//
// A [Session] shares one connection. Either side opens channels in it, by name and, optionally, a
// 128-bit [ID]; opening costs no round trip. A [Channel] carries messages of 0 bytes to
// Config.MaxMessage; a [Stream] carries bytes and is a net.Conn.
//
// A [Dialer] makes sessions by address, shares them among all callers that open channels there,
// spreads channels over several connections if configured (to the less queued of two), and closes
// idle sessions. A channel stays in the session it was opened in, so that its order holds.
//
// # A server
//
// The listening side makes a session of each connection, and accepts channels until the session is
// over (ExampleServer is complete):
//
//	for {
//		conn, err := listener.Accept()
//		...
//		go func() {
//			s, err := mux.Server(ctx, conn, mux.Config{})
//			...
//			defer s.Close()
//			for {
//				ch, err := s.Accept(ctx)
//				if err != nil {
//					return
//				}
//				go serve(ctx, ch) // until Receive fails; then ch.Close()
//			}
//		}()
//	}
//
// Open waits while the other side has as many channels open, or not accepted yet, as its
// Config allows; see [NoWait].
//
// # What is promised
//
//   - A large message is cut in frames of at most Config.MaxFrame bytes and frames of different
//     channels alternate by priority, so that a small message waits for one frame per competitor
//     and not for whole messages.
//   - A slow receiver stops only its own senders. Each channel has its own credit;
//     the session's reader never waits for an application. (Unread data counts
//     against Config.SessionWindow: close channels that are not read.)
//   - Memory is bounded by Config, whatever the other side sends.
//   - A Send that fails because its context ended was not and will not be
//     delivered, and [SafeToRetry] says so.
//   - With Config.Resume, what Send accepted arrives exactly once and in order
//     even if connections are lost, as long as both processes live.
//   - Every wait ends with its context or deadline, with the channel, and with the
//     session. Keep-alive detects a dead peer. Close leaves no goroutine, timer or
//     buffer of a session behind.
//
// That Send returned does not mean that the other side's application has the message: only an
// answer does. When the connection is lost the session is lost with it, and every operation returns
// ErrSessionLost. A session that the other side has drained ends with ErrSessionClosed instead:
// nothing was lost.
//
// # Resumption
//
// With Config.Resume on both sides, the session outlives its connections: the client makes another
// ([Resume].Dial, or the Dialer), and all channels continue where they were, with nothing lost,
// doubled or out of order. Unacknowledged data is kept for that, bounded by Resume.Buffer; a
// session that cannot be resumed in time ends with a [LostError], which lists that data. A server
// passes one *Resume to all its calls of Server:
//
//	resume := &mux.Resume{}
//	for {
//		conn, err := listener.Accept()
//		...
//		go func() {
//			s, err := mux.Server(ctx, conn, mux.Config{Resume: resume})
//			if errors.Is(err, mux.ErrResumed) {
//				return // a client has resumed its session, which continues on conn
//			}
//			...
//		}()
//	}
//
// # Speed
//
// A lone Send makes one system call on its caller's goroutine; concurrent senders share system
// calls, without delaying one another by a timer. When small messages follow each other within
// microseconds, and no caller waits for an answer in between, the session's writer writes them,
// many with each system call: as soon as a processor is free, or the sender waits for something. A
// lone receiver on a plain socket, with a context that cannot end and no deadline, reads the socket
// itself, which saves waking it: this is the fastest way to receive. The session's reader wakes
// other receivers. Send and ReceiveInto do not allocate. On connections that are not plain sockets
// (TLS, net.Pipe) a caller whose context can end leaves the writing to the session's writer,
// because such a write cannot be interrupted.
//
// # Fibers
//
// A session has its own goroutines, also if its callers are fibers (package fiber). It detaches an
// engine's connection from its loop before the handshake, because each read and write would be a
// trip to the loop; make TLS over the connection that its Detach returns. A Stream is a
// fiber.Stream: fibers read and write it as they do a socket. On a fiber call everything else that
// may wait, such as Client and Server, in fiber.Block.
//
// The wire format is package mux/frame; the protocol is docs/mux-protocol.md.
package mux
