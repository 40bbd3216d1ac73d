package mux_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
)

// line is a network between one client and one server, whose connections can be cut.
type line struct {
	t      testing.TB
	pipes  bool
	server mux.Config
	tls    [2]*tls.Config          // of the client and the server; nil: plain
	wrap   func(net.Conn) net.Conn // of the client's end; nil: none

	mu       sync.Mutex
	conns    []net.Conn // both ends of the newest connection
	down     error      // why none can be had
	sessions chan *mux.Session
	work     sync.WaitGroup
}

// newLine makes one whose server has a Resume.
func newLine(t testing.TB, pipes bool, server mux.Config) *line {
	return &line{t: t, pipes: pipes, server: server, sessions: make(chan *mux.Session, 16)}
}

func (n *line) dial(context.Context) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down != nil {
		return nil, n.down
	}
	var here, there net.Conn
	if n.pipes {
		here, there = net.Pipe()
	} else {
		here, there = tcpPair(n.t)
	}
	n.conns = []net.Conn{here, there}
	if n.wrap != nil {
		here = n.wrap(here)
	}
	if n.tls[0] != nil {
		here, there = tls.Client(here, n.tls[0]), tls.Server(there, n.tls[1])
	}
	n.work.Go(func() {
		s, err := mux.Server(bg, there, n.server)
		switch {
		case err == nil:
			n.sessions <- s
		case !errors.Is(err, mux.ErrResumed) && !errors.Is(err, mux.ErrHandshake) &&
			!errors.Is(err, mux.ErrSessionLost) && !errors.Is(err, mux.ErrDenied):
			n.t.Errorf("server: %v", err)
		}
	})
	return here, nil
}

// cut ends the newest connection, at one end or the other.
func (n *line) cut(end int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.conns[end].(*net.TCPConn); ok {
		c.SetLinger(0)
	}
	n.conns[end].Close()
}

// set makes new connections impossible until err is nil.
func (n *line) set(down error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

// join makes the session.
func (n *line) join(client mux.Config) (c, s *mux.Session) {
	n.t.Helper()
	r := &mux.Resume{}
	if client.Resume != nil {
		r = client.Resume
	}
	r.Dial = n.dial
	client.Resume = r
	conn, err := n.dial(bg)
	if err != nil {
		n.t.Fatal(err)
	}
	if c, err = mux.Client(bg, conn, client); err != nil {
		n.t.Fatal(err)
	}
	return c, <-n.sessions
}

// end closes both sides, and waits for the server's goroutines.
func (n *line) end(c, s *mux.Session) {
	c.Close()
	s.Close()
	n.work.Wait()
}

// numbered is a message with a number and random length.
func numbered(r *rand.Rand, i int) []byte {
	size := []int{8, 60, 1000, 5000, 70_000}[r.IntN(5)]
	p := make([]byte, 8+r.IntN(size))
	binary.BigEndian.PutUint64(p, uint64(i))
	for j := 8; j < len(p); j++ {
		p[j] = byte(i + j)
	}
	return p
}

// checkNumbered says what is wrong with the message that should be number i.
func checkNumbered(p []byte, i int) error {
	if got := binary.BigEndian.Uint64(p); got != uint64(i) {
		return fmt.Errorf("message %d arrived where %d belongs", got, i)
	}
	for j := 8; j < len(p); j++ {
		if p[j] != byte(i+j) {
			return fmt.Errorf("message %d is damaged at %d", i, j)
		}
	}
	return nil
}

// reconnects cuts the connection until it was resumed n times, while messages go both ways on some channels, and checks
// that none is lost, doubled, out of order or damaged.
func reconnects(t *testing.T, times int, n *line) {
	n.server.Resume = &mux.Resume{Buffer: 256 << 10}
	c, s := n.join(mux.Config{Resume: &mux.Resume{Buffer: 128 << 10}})
	var arrived atomic.Int64
	progress := make(chan struct{}, 1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		here, there := channels(t, c, s)
		for dir, ends := range [2][2]*mux.Channel{{here, there}, {there, here}} {
			r := rand.New(rand.NewPCG(uint64(i), uint64(dir)))
			wg.Go(func() {
				for j := 0; ; j++ {
					select {
					case <-stop:
						ends[0].CloseWrite()
						return
					default:
					}
					if err := ends[0].Send(bg, numbered(r, j)); err != nil {
						t.Errorf("send: %v", err)
						return
					}
				}
			})
			wg.Go(func() { receiveNumbered(t, ends[1], &arrived, progress) })
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; c.Stats().Resumed < uint64(times); i++ {
		for want := arrived.Load() + int64(1+r.IntN(60)); arrived.Load() < want; {
			<-progress
		}
		n.cut(i % 2)
	}
	close(stop)
	wg.Wait()
	st := c.Stats()
	t.Logf("%d messages, %d losses, %d resumed, %d bytes sent again, the last gap %v", arrived.Load(), st.Losses, st.Resumed, st.SentAgain, st.Gap)
	if st.Resumed > st.Losses {
		t.Errorf("resumed %d times after %d losses", st.Resumed, st.Losses)
	}
	n.end(c, s)
}

// receiveNumbered receives until the end of the channel.
func receiveNumbered(t *testing.T, ch *mux.Channel, arrived *atomic.Int64, progress chan<- struct{}) {
	for i := 0; ; i++ {
		m, err := ch.Receive(bg)
		if err != nil {
			if err.Error() != "EOF" {
				t.Errorf("receive: %v", err)
			}
			return
		}
		if err := checkNumbered(m.Bytes(), i); err != nil {
			t.Error(err)
		}
		m.Release()
		arrived.Add(1)
		select {
		case progress <- struct{}{}:
		default:
		}
	}
}

func TestReconnects(t *testing.T) {
	t.Run("tcp", func(t *testing.T) { reconnects(t, 30, newLine(t, false, mux.Config{})) })
	t.Run("tls", func(t *testing.T) {
		n := newLine(t, false, mux.Config{})
		n.tls = mutual(newAuthority(), "client.test")
		reconnects(t, 10, n)
	})
	t.Run("pipe", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { reconnects(t, 30, newLine(t, true, mux.Config{})) })
	})
}

// mutual is TLS in which both sides show certificates.
func mutual(ca *authority, client string) [2]*tls.Config {
	return [2]*tls.Config{
		{Certificates: []tls.Certificate{ca.issue(client)}, RootCAs: ca.pool, ServerName: "server.test"},
		{Certificates: []tls.Certificate{ca.issue("server.test")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool},
	}
}

// TestResumedBySomebodyElse: the ticket alone is not enough where clients have certificates.
func TestResumedBySomebodyElse(t *testing.T) {
	ca := newAuthority()
	n := newLine(t, false, mux.Config{Resume: &mux.Resume{}})
	n.tls = mutual(ca, "client.test")
	c, s := n.join(mux.Config{})
	n.mu.Lock()
	n.tls = mutual(ca, "client.test") // the same name with another key
	n.mu.Unlock()
	n.cut(1)
	<-c.Done()
	if err := c.Err(); !errors.Is(err, mux.ErrDenied) || !errors.Is(err, mux.ErrSessionLost) {
		t.Errorf("got %v, want ErrDenied", err)
	}
	if s.Err() != nil {
		t.Errorf("the server's session: %v", s.Err())
	}
	n.end(c, s)
}

// TestResumingRefusedForNow: the client comes again.
func TestResumingRefusedForNow(t *testing.T) {
	asked := 0 // by one connection after the other
	n := newLine(t, false, mux.Config{Resume: &mux.Resume{}, Authorize: func(_ context.Context, p mux.Peer) error {
		if asked++; p.Resumes != (asked > 1) {
			t.Errorf("asked for the %dth time: %+v", asked, p)
		}
		if asked == 2 || asked == 3 {
			return &mux.Refusal{Reason: "not yet"}
		}
		return nil
	}})
	c, s := n.join(mux.Config{})
	here, there := channels(t, c, s)
	n.cut(0)
	here.Send(bg, pattern(1000))
	expect(t, there, pattern(1000))
	if st := c.Stats(); st.Resumed != 1 || c.Err() != nil {
		t.Errorf("%+v, %v", st, c.Err())
	}
	n.end(c, s)
}

var errDown = errors.New("no way")

// TestSuspended: without a connection everything waits, and continues with the next; the data that
// Send takes is bounded.
func TestSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}, ChannelWindow: 1 << 20})
		c, s := n.join(mux.Config{Resume: &mux.Resume{Buffer: 64 << 10, Backpressure: true}})
		here, there := channels(t, c, s)
		n.set(errDown)
		n.cut(0)
		synctest.Wait()
		if st := c.Stats(); !st.Suspended || st.Losses != 1 || c.Err() != nil || s.Err() != nil {
			t.Fatalf("after the cut: %+v, %v, %v", st, c.Err(), s.Err())
		}
		sent := 0
		for ; ; sent++ {
			if err := here.Send(bg, pattern(1000)); err != nil {
				if !errors.Is(err, mux.ErrBackpressure) || !mux.SafeToRetry(err) {
					t.Fatal(err)
				}
				break
			}
		}
		if sent < 60 || sent > 200 {
			t.Errorf("%d messages of 1000 bytes with a buffer of 64 KiB", sent)
		}
		time.Sleep(time.Minute)
		n.set(nil)
		for range sent {
			expect(t, there, pattern(1000))
		}
		if err := here.Send(bg, pattern(10)); err != nil {
			t.Error(err)
		}
		expect(t, there, pattern(10))
		if st := c.Stats(); st.Resumed != 1 || st.Gap < time.Minute || s.Stats().Resumed != 1 {
			t.Errorf("after it: %+v", st)
		}
		n.end(c, s)
	})
}

// TestSwallowedAttempt: an attempt whose bytes the path swallows is given up long before the time-out of the handshake. A server that
// takes longer than that to answer is waited for in the end.
func TestSwallowedAttempt(t *testing.T) {
	for name, takes := range map[string]time.Duration{"swallowed": 0, "slow server": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := mux.Config{Resume: &mux.Resume{}, HandshakeTimeout: time.Minute, Authorize: func(_ context.Context, p mux.Peer) error {
					if p.Resumes {
						time.Sleep(takes)
					}
					return nil
				}}
				n := newLine(t, true, server)
				c, s := n.join(mux.Config{HandshakeTimeout: time.Minute})
				n.wrap = func(conn net.Conn) net.Conn {
					if takes > 0 {
						return conn
					}
					n.wrap = nil
					hole := &swallow{Conn: conn}
					hole.on.Store(true)
					return hole
				}
				here, there := channels(t, c, s)
				n.cut(0)
				here.Send(bg, pattern(1000))
				expect(t, there, pattern(1000))
				if st := c.Stats(); st.Resumed != 1 || st.Gap > 30*time.Second {
					t.Errorf("resumed %d times, after %v", st.Resumed, st.Gap)
				}
				n.end(c, s)
			})
		})
	}
}

// TestNotResumedInTime: the session ends, and its error lists unacknowledged data.
func TestNotResumedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{Window: time.Minute}})
		c, s := n.join(mux.Config{})
		here, there := channels(t, c, s)
		here.Send(bg, []byte("arrives"))
		expect(t, there, []byte("arrives"))
		time.Sleep(time.Second) // it is acknowledged
		n.set(errDown)
		n.cut(0)
		synctest.Wait()
		for range 3 {
			if err := here.Send(bg, []byte("nobody knows")); err != nil {
				t.Fatal(err)
			}
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := there.Receive(bg)
			waiting <- err
		}()
		began := time.Now()
		<-c.Done()
		<-s.Done()
		if took := time.Since(began); took > 2*time.Minute || took < 30*time.Second {
			t.Errorf("lost after %v, want a minute", took)
		}
		var lost *mux.LostError
		if err := c.Err(); !errors.As(err, &lost) || !errors.Is(err, mux.ErrSessionLost) {
			t.Fatalf("got %v", err)
		}
		want := mux.Unacknowledged{Channel: here.Number(), Name: here.Name(), Messages: 3, Bytes: 3 * uint64(len("nobody knows"))}
		if len(lost.Unacknowledged) != 1 || lost.Unacknowledged[0] != want {
			t.Errorf("not acknowledged: %+v, want %+v", lost.Unacknowledged, want)
		}
		if err := <-waiting; !errors.Is(err, mux.ErrSessionLost) {
			t.Errorf("the receiver got %v", err)
		}
		n.end(c, s)
	})
}

// TestServerRestarted: the client learns it at once.
func TestServerRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		c, s := n.join(mux.Config{})
		n.mu.Lock()
		n.server.Resume = &mux.Resume{} // as another process would have
		n.mu.Unlock()
		began := time.Now()
		n.cut(1)
		<-c.Done()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if err := c.Err(); !errors.Is(err, mux.ErrSessionLost) || !errors.Is(err, mux.ErrNotResumed) {
			t.Errorf("got %v", err)
		}
		n.end(c, s)
	})
}

// TestDrainIsNoLoss: the other side of a session that could be resumed, and was drained, has lost nothing.
func TestDrainIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		c, s := n.join(mux.Config{})
		here, there := channels(t, c, s)
		drained := make(chan error, 1)
		go func() { drained <- s.Drain(bg) }()
		here.Send(bg, []byte("last words"))
		here.Close()
		expect(t, there, []byte("last words"))
		there.Close()
		if err := <-drained; err != nil {
			t.Error(err)
		}
		<-c.Done()
		err := c.Err()
		if _, lost := errors.AsType[*mux.LostError](err); lost || !errors.Is(err, mux.ErrSessionClosed) || errors.Is(err, mux.ErrSessionLost) {
			t.Errorf("got %v", err)
		}
		if _, err := c.Open(bg, "late"); !errors.Is(err, mux.ErrSessionClosed) || !mux.SafeToRetry(err) {
			t.Errorf("Open: %v", err)
		}
		n.end(c, s)
	})
}

// TestCloseIsNoLoss: the other side does not wait for another connection.
func TestCloseIsNoLoss(t *testing.T) {
	for _, first := range []string{"client", "server"} {
		synctest.Test(t, func(t *testing.T) {
			n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
			c, s := n.join(mux.Config{})
			here, there := channels(t, c, s)
			if first == "server" {
				c, s, here, there = s, c, there, here
			}
			here.Send(bg, []byte("last words"))
			began := time.Now()
			go c.Close()
			expect(t, there, []byte("last words"))
			<-s.Done()
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s first: the other side's end took %v", first, took)
			}
			if err := s.Err(); !errors.Is(err, mux.ErrSessionLost) {
				t.Errorf("%s first: got %v", first, err)
			}
			n.end(c, s)
		})
	}
}

// TestFailedWriteHidesNothing: data that the other side sent before it closed counts, its last
// frame too, though writing to it fails before that is read.
func TestFailedWriteHidesNothing(t *testing.T) {
	for _, resume := range []bool{false, true} {
		hold := &held{there: make(chan struct{})}
		wrap := func(c net.Conn) net.Conn {
			hold.Conn = c
			return hold
		}
		n := newLine(t, false, mux.Config{CloseTimeout: 10 * time.Second})
		n.wrap = wrap
		var c, s *mux.Session
		if resume {
			n.server.Resume = &mux.Resume{}
			c, s = n.join(mux.Config{CloseTimeout: 10 * time.Second})
		} else {
			here, there := tcpPair(t)
			c, s = join(t, wrap(here), there, mux.Config{CloseTimeout: 10 * time.Second}, n.server)
		}
		here, there := channels(t, c, s)
		if err := there.Send(bg, []byte("first")); err != nil {
			t.Fatal(err)
		}
		expect(t, here, []byte("first"))
		hold.on.Store(true)
		for range 3 {
			if err := there.Send(bg, []byte("last words")); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan struct{})
		go func() {
			s.Close()
			close(closed)
		}()
		<-s.Done()
		if err := here.Send(bg, []byte("answer")); err != nil && !errors.Is(err, mux.ErrSessionLost) {
			t.Errorf("resume %v: %v", resume, err)
		}
		close(hold.there)
		for range 3 {
			expect(t, here, []byte("last words"))
		}
		<-c.Done()
		if err := c.Err(); !errors.Is(err, mux.ErrSessionLost) || c.Stats().Losses != 0 {
			t.Errorf("resume %v: got %v after %d losses", resume, err, c.Stats().Losses)
		}
		n.end(c, s)
		<-closed
	}
}

// held is a connection on which, once on, writing fails and received data is passed on when there
// is closed.
type held struct {
	net.Conn
	on    atomic.Bool
	there chan struct{}
}

func (h *held) Write(p []byte) (int, error) {
	if h.on.Load() {
		return 0, net.ErrClosed
	}
	return h.Conn.Write(p)
}

func (h *held) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if h.on.Load() {
		<-h.there
	}
	return n, err
}

// TestSilentConnectionIsReplaced: a connection that swallows everything is detected by keep-alive,
// and the session continues on another.
func TestSilentConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := mux.Config{KeepAlive: 10 * time.Second, KeepAliveTimeout: 5 * time.Second, Resume: &mux.Resume{}}
		n := newLine(t, true, cfg)
		hole := &swallow{}
		n.wrap = func(c net.Conn) net.Conn {
			n.wrap = nil
			hole.Conn = c
			return hole
		}
		cfg.Resume = nil
		c, s := n.join(cfg)
		here, there := channels(t, c, s)
		synctest.Wait()
		hole.on.Store(true)
		if err := here.Send(bg, []byte("through")); err != nil {
			t.Fatal(err)
		}
		expect(t, there, []byte("through"))
		if st := c.Stats(); st.Resumed != 1 {
			t.Errorf("%+v", st)
		}
		n.end(c, s)
	})
}

// swallow is a connection that, once on, takes everything and passes nothing on.
type swallow struct {
	net.Conn
	on atomic.Bool
}

func (s *swallow) Write(p []byte) (int, error) {
	if s.on.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

// TestCutOffAtOnce: connections that are cut off as soon as they are there are not made anew without end, and one that was good for something is
// replaced at once.
func TestCutOffAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		c, s := n.join(mux.Config{})
		here, there := channels(t, c, s)
		cut := func() (took time.Duration) {
			began, before := time.Now(), c.Stats().Resumed
			n.cut(0)
			for c.Stats().Resumed == before {
				time.Sleep(time.Millisecond)
			}
			synctest.Wait()
			return time.Since(began)
		}
		for range 12 {
			cut()
		}
		if took := cut(); took < time.Second {
			t.Errorf("after a dozen connections that were good for nothing the next came %v later", took)
		}
		if err := here.Send(bg, []byte("good")); err != nil {
			t.Fatal(err)
		}
		expect(t, there, []byte("good"))
		time.Sleep(time.Second) // it is acknowledged
		if took := cut(); took > 10*time.Millisecond {
			t.Errorf("after one that was good for something the next came %v later", took)
		}
		n.end(c, s)
	})
}

// TestOneSideWithoutResume: the session works, and ends with its connection.
func TestOneSideWithoutResume(t *testing.T) {
	for _, cfgs := range [][2]mux.Config{
		{{Resume: &mux.Resume{Dial: func(context.Context) (net.Conn, error) { return nil, errDown }}}, {}},
		{{}, {Resume: &mux.Resume{}}},
	} {
		c, s := sessions(t, "tcp", cfgs[0], cfgs[1])
		here, there := channels(t, c, s)
		here.Send(bg, []byte("hello"))
		expect(t, there, []byte("hello"))
		if c.Resumable() || s.Resumable() {
			t.Error("resumable")
		}
	}
}

// TestNothingAllocates: a message or some bytes of a stream sent and received, with
// resumption and without.
func TestNothingAllocates(t *testing.T) {
	for _, resume := range []bool{false, true} {
		var cfg mux.Config
		if resume {
			cfg.Resume = &mux.Resume{Buffer: 128 << 10}
		}
		n := newLine(t, false, cfg)
		var c, s *mux.Session
		if resume {
			c, s = n.join(mux.Config{Resume: &mux.Resume{Buffer: 128 << 10}})
		} else {
			c, s = sessions(t, "tcp", cfg, cfg)
		}
		here, there := channels(t, c, s)
		near, err := c.OpenStream(bg, "")
		if err != nil {
			t.Fatal(err)
		}
		far, err := s.AcceptStream(bg)
		if err != nil {
			t.Fatal(err)
		}
		p, q := make([]byte, 1024), make([]byte, 1024)
		for kind, round := range map[string]func() error{
			"messages": func() error {
				for _, pair := range [2][2]*mux.Channel{{here, there}, {there, here}} {
					if err := pair[0].Send(bg, p); err != nil {
						return err
					}
					if _, err := pair[1].ReceiveInto(bg, q); err != nil {
						return err
					}
				}
				return nil
			},
			"streams": func() error {
				for _, pair := range [2][2]*mux.Stream{{near, far}, {far, near}} {
					if _, err := pair[0].Write(p); err != nil {
						return err
					}
					if _, err := io.ReadFull(pair[1], q); err != nil {
						return err
					}
				}
				return nil
			},
		} {
			once := func() {
				if err := round(); err != nil {
					t.Fatal(err)
				}
			}
			for range 100 {
				once()
			}
			if n := testing.AllocsPerRun(300, once); n > 0 && !raceEnabled {
				t.Errorf("%s, resumption %v: %v allocations for a round trip", kind, resume, n)
			}
		}
		n.end(c, s)
	}
}
