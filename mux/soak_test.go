package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
)

// TestSoak keeps a session busy with all that it can do, slow receivers among it,
// while its connections are delayed and cut, for a second or HEADPOND_SOAK (`make
// soak`). Everything is compared, and at the end nothing may be left over.
func TestSoak(t *testing.T) {
	length, long := conntest.SoakLength(t, time.Second)
	if long {
		t.Run("1000 reconnects", func(t *testing.T) { reconnects(t, 1000, newLine(t, false, mux.Config{})) })
	}
	ctx, cancel := context.WithTimeout(bg, length)
	defer cancel()
	n := newLine(t, false, mux.Config{Resume: &mux.Resume{Buffer: 256 << 10}})
	n.wrap = sometimesSlow()
	c, s := n.join(mux.Config{Resume: &mux.Resume{Buffer: 256 << 10}})
	soak := &soak{t: t, c: c, s: s, progress: make(chan struct{}, 1), data: pattern(2 << 20)}
	soak.serve()
	before, goroutines, files := heap(), runtime.NumGoroutine(), descriptors()
	for i := range 4 {
		soak.loads.Go(func() { soak.repeat(ctx, uint64(i), soak.messages) })
		soak.loads.Go(func() { soak.repeat(ctx, uint64(i), soak.stream) })
		soak.loads.Go(func() { soak.repeat(ctx, uint64(i), soak.giveUp) })
		soak.ordered(ctx, uint64(i), time.Duration(i)*300*time.Microsecond)
	}
	half := int64(0)
	began := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		for want := soak.done.Load() + 20; ctx.Err() == nil && soak.done.Load() < want; {
			select {
			case <-soak.progress:
			case <-ctx.Done():
			}
		}
		n.cut(i % 2)
		if half == 0 && time.Since(began) > length/2 {
			half = heap()
		}
	}
	soak.loads.Wait()
	for c.Stats().Channels > 0 || s.Stats().Channels > 0 || runtime.NumGoroutine() > goroutines || descriptors() > files {
		runtime.Gosched() // the test's time limit bounds it
	}
	st := c.Stats()
	if err := errors.Join(c.Err(), s.Err()); err != nil {
		t.Errorf("the session ended: client: %v; server: %v", c.Err(), s.Err())
	}
	t.Logf("%d operations, %d numbered messages, %d losses, %d resumed, %d bytes sent again; heap %d KiB, at half time %d, at the end %d",
		soak.done.Load(), soak.arrived.Load(), st.Losses, st.Resumed, st.SentAgain, before>>10, half>>10, heap()>>10)
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("%d KiB more than at the start", grown>>10)
	}
	n.end(c, s)
	soak.servers.Wait()
}

type soak struct {
	t              *testing.T
	c, s           *mux.Session
	done, arrived  atomic.Int64
	progress       chan struct{}
	data           []byte
	loads, servers sync.WaitGroup
}

// serve echoes at the far side until the session ends.
func (k *soak) serve() {
	k.servers.Go(func() {
		for {
			ch, err := k.s.Accept(bg)
			if err != nil {
				return
			}
			k.servers.Go(func() { echoChannel(ch) })
		}
	})
	k.servers.Go(func() {
		for {
			st, err := k.s.AcceptStream(bg)
			if err != nil {
				return
			}
			k.servers.Go(func() {
				defer st.Close()
				io.Copy(st, st)
			})
		}
	})
}

// ordered sends numbered messages on one channel until ctx ends, and wants each of
// them back once and in order; a receiver that is slow takes its time for each.
func (k *soak) ordered(ctx context.Context, seed uint64, slow time.Duration) {
	ch, err := k.c.Open(bg, "numbered")
	if err != nil {
		k.t.Fatal(err)
	}
	var sent atomic.Int64
	k.loads.Go(func() {
		defer ch.CloseWrite()
		r := rand.New(rand.NewPCG(seed, 4))
		for ctx.Err() == nil {
			if err := ch.Send(bg, numbered(r, int(sent.Load()))); err != nil {
				k.t.Errorf("send: %v", err)
				return
			}
			sent.Add(1)
		}
	})
	k.loads.Go(func() {
		defer ch.Close()
		for i := 0; ; i++ {
			m, err := ch.Receive(bg)
			if err == io.EOF && int64(i) == sent.Load() {
				return
			}
			if err == nil {
				err = checkNumbered(m.Bytes(), i)
				m.Release()
			}
			if err != nil {
				k.t.Errorf("after %d messages of %d: %v", i, sent.Load(), err)
				return
			}
			k.arrived.Add(1)
			if slow > 0 {
				<-time.After(slow)
			}
		}
	})
}

// sometimesSlow delays the writes of every third connection.
func sometimesSlow() func(net.Conn) net.Conn {
	n := 0
	return func(c net.Conn) net.Conn {
		if n++; n%3 > 0 {
			return c
		}
		return &delayed{c}
	}
}

type delayed struct{ net.Conn }

func (d *delayed) Write(p []byte) (int, error) {
	<-time.After(rand.N(2 * time.Millisecond))
	return d.Conn.Write(p)
}

func (d *delayed) CloseWrite() error { return d.Conn.(*net.TCPConn).CloseWrite() }

// descriptors counts the open descriptors of the process, where the system shows them.
func descriptors() int {
	files, _ := os.ReadDir("/proc/self/fd")
	return len(files)
}

// repeat runs one until ctx ends.
func (k *soak) repeat(ctx context.Context, seed uint64, one func(r *rand.Rand) error) {
	r := rand.New(rand.NewPCG(seed, 3))
	for ctx.Err() == nil {
		err := one(r)
		if errors.Is(err, mux.ErrTooManyChannels) || errors.Is(err, mux.ErrRefused) {
			runtime.Gosched() // giveUp is faster than the connection
			continue
		}
		if err != nil {
			k.t.Error(err)
			return
		}
	}
}

// some is bytes to send, less than 2 to the bits.
func (k *soak) some(r *rand.Rand, bits int) []byte {
	at := r.IntN(len(k.data) / 2)
	return k.data[at : at+r.IntN(1<<r.IntN(bits))]
}

// count counts an exchange, which needs a connection.
func (k *soak) count() {
	k.done.Add(1)
	select {
	case k.progress <- struct{}{}:
	default:
	}
}

// messages exchanges some messages on a new channel.
func (k *soak) messages(r *rand.Rand) error {
	ch, err := k.c.Open(bg, "messages", mux.WithPriority(mux.Priority(r.IntN(5))))
	if err != nil {
		return err
	}
	defer ch.Close()
	for range r.IntN(20) {
		p := k.some(r, 18)
		if err := ch.Send(bg, p); err != nil {
			return err
		}
		m, err := ch.Receive(bg)
		if err != nil {
			return err
		}
		if !bytes.Equal(m.Bytes(), p) {
			return errors.New("the answer is another")
		}
		m.Release()
	}
	k.count()
	return nil
}

// stream sends some bytes and reads them back.
func (k *soak) stream(r *rand.Rand) error {
	st, err := k.c.OpenStream(bg, "stream")
	if err != nil {
		return err
	}
	defer st.Close()
	p := k.some(r, 20)
	go func() {
		if _, err := st.Write(p); err == nil {
			st.CloseWrite()
		}
	}()
	got, err := io.ReadAll(st)
	if err == nil && !bytes.Equal(got, p) {
		err = errors.New("the bytes read are others")
	}
	k.count()
	return err
}

// giveUp ends operations early: contexts that end, resets, closing in the middle. It waits for the
// other side first: opening and resetting without waiting is a flood.
func (k *soak) giveUp(r *rand.Rand) error {
	ch, err := k.c.Open(bg, "give up")
	if err != nil {
		return err
	}
	if err := ch.WaitAccepted(bg); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	go cancel()
	for range 3 {
		if err := ch.Send(ctx, k.some(r, 18)); err != nil {
			break
		}
	}
	if r.IntN(2) == 0 {
		ch.Reset(7, "enough")
	}
	return ch.Close()
}
