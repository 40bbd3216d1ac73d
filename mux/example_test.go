package mux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/mux"
)

// connect makes two sessions that talk to each other, as two processes would.
func connect(cfg mux.Config) (client, server *mux.Session) {
	here, there := net.Pipe()
	made := make(chan *mux.Session)
	go func() {
		s, err := mux.Server(context.Background(), there, cfg)
		if err != nil {
			fmt.Println("server:", err)
		}
		made <- s
	}()
	client, err := mux.Client(context.Background(), here, cfg)
	if err != nil {
		fmt.Println("client:", err)
	}
	return client, <-made
}

func Example() {
	ctx := context.Background()
	client, server := connect(mux.Config{})
	defer client.Close()
	defer server.Close()

	go func() {
		ch, err := server.Accept(ctx)
		if err != nil {
			return
		}
		for {
			m, err := ch.Receive(ctx)
			if err != nil { // io.EOF: the client has closed its side
				ch.Close()
				return
			}
			ch.Send(ctx, append([]byte("echo: "), m.Bytes()...))
			m.Release()
		}
	}()

	ch, err := client.Open(ctx, "echo")
	if err != nil {
		panic(err)
	}
	ch.Send(ctx, []byte("one"))
	ch.Send(ctx, []byte("two"))
	ch.CloseWrite()
	for {
		m, err := ch.Receive(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	// Output:
	// echo: one
	// echo: two
}

// A server and a client as in production: the client's Dialer makes connections on demand, and with Resume a session
// continues where it was when its connection breaks.
func ExampleDialer() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	go func() { // the server
		resume := &mux.Resume{} // one for all connections: it holds the sessions that clients resume
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				s, err := mux.Server(ctx, conn, mux.Config{Resume: resume})
				if err != nil {
					return // mux.ErrResumed: its session continues on conn
				}
				defer s.Close()
				for {
					ch, err := s.Accept(ctx)
					if err != nil {
						return
					}
					go answer(ctx, ch)
				}
			}()
		}
	}()

	d := &mux.Dialer{Config: mux.Config{Resume: &mux.Resume{}}}
	defer d.Close()
	ch, err := d.Open(ctx, l.Addr().String(), "greetings")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ch.Close()
	for _, name := range []string{"Ada", "Grace"} {
		if err := ch.Send(ctx, []byte(name)); err != nil {
			fmt.Println(err)
			return
		}
		m, err := ch.Receive(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	// Output:
	// hello, Ada
	// hello, Grace
}

// A server from its first connection to its end, which loses nothing: it drains.
func ExampleServer() {
	ctx := context.Background()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	var work, sessions sync.WaitGroup
	stopping := make(chan struct{})
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			sessions.Go(func() {
				s, err := mux.Server(ctx, conn, mux.Config{})
				if err != nil {
					return // the client got the reason
				}
				defer s.Close()
				work.Go(func() {
					select {
					case <-stopping:
						s.Drain(ctx) // ErrDraining for the client's next Open
					case <-s.Done():
					}
				})
				for {
					ch, err := s.Accept(ctx)
					if err != nil {
						return // the session is over
					}
					sessions.Go(func() { answer(ctx, ch) })
				}
			})
		}
	})

	d := &mux.Dialer{}
	ch, err := d.Open(ctx, l.Addr().String(), "greetings")
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, name := range []string{"Ada", "Grace"} {
		if i == 1 { // the server is to end: open channels continue
			l.Close()
			close(stopping)
		}
		ch.Send(ctx, []byte(name))
		m, err := ch.Receive(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	session := ch.Session()
	ch.Close()
	<-session.Done()
	fmt.Println("lost:", errors.Is(session.Err(), mux.ErrSessionLost))
	sessions.Wait()
	work.Wait()
	d.Close()
	// Output:
	// hello, Ada
	// hello, Grace
	// lost: false
}

// answer serves one channel.
func answer(ctx context.Context, ch *mux.Channel) {
	defer ch.Close()
	for {
		m, err := ch.Receive(ctx)
		if err != nil { // io.EOF: the other side has closed it
			return
		}
		err = ch.Send(ctx, append([]byte("hello, "), m.Bytes()...))
		m.Release()
		if err != nil {
			return
		}
	}
}

func ExampleSession_OpenStream() {
	ctx := context.Background()
	client, server := connect(mux.Config{PSK: []byte("a key of 16 bytes or more")})
	defer client.Close()
	defer server.Close()

	go func() {
		stream, err := server.AcceptStream(ctx)
		if err != nil {
			return
		}
		defer stream.Close()
		io.Copy(stream, stream)
	}()

	stream, err := client.OpenStream(ctx, "copy")
	if err != nil {
		panic(err)
	}
	io.WriteString(stream, "any net.Conn will do")
	stream.CloseWrite()
	all, err := io.ReadAll(stream)
	fmt.Printf("%s, %v\n", all, err)
	// Output: any net.Conn will do, <nil>
}

func ExampleSafeToRetry() {
	client, server := connect(mux.Config{ChannelWindow: 4096})
	defer client.Close()
	defer server.Close()

	ch, err := client.Open(context.Background(), "nobody reads")
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err = ch.Send(ctx, make([]byte, 1<<20))
	fmt.Println(errors.Is(err, context.DeadlineExceeded), mux.SafeToRetry(err))
	// Output: true true
}
