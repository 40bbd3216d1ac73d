package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/mux"
)

// TestSoak keeps a session busy with all that it can do while its connections are
// cut, for a second or HEADPOND_SOAK (`make soak`), and looks for what is left over.
func TestSoak(t *testing.T) {
	length := time.Second
	if text := os.Getenv("HEADPOND_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("HEADPOND_SOAK: %v", err)
		}
		t.Run("1000 reconnects", func(t *testing.T) { reconnects(t, 1000, newLine(t, false, mux.Config{})) })
	}
	ctx, cancel := context.WithTimeout(bg, length)
	defer cancel()
	n := newLine(t, false, mux.Config{Resume: &mux.Resume{Buffer: 256 << 10}})
	c, s := n.join(mux.Config{Resume: &mux.Resume{Buffer: 256 << 10}})
	soak := &soak{t: t, c: c, s: s, progress: make(chan struct{}, 1), data: pattern(2 << 20)}
	soak.serve()
	before, goroutines := heap(), runtime.NumGoroutine()
	for i := range 4 {
		soak.loads.Go(func() { soak.repeat(ctx, uint64(i), soak.messages) })
		soak.loads.Go(func() { soak.repeat(ctx, uint64(i), soak.stream) })
		soak.loads.Go(func() { soak.repeat(ctx, uint64(i), soak.giveUp) })
	}
	for i := 0; ctx.Err() == nil; i++ {
		for want := soak.done.Load() + 20; ctx.Err() == nil && soak.done.Load() < want; {
			select {
			case <-soak.progress:
			case <-ctx.Done():
			}
		}
		n.cut(i % 2)
	}
	soak.loads.Wait()
	for c.Stats().Channels > 0 || s.Stats().Channels > 0 || runtime.NumGoroutine() > goroutines {
		runtime.Gosched() // the test's time limit bounds it
	}
	st := c.Stats()
	if err := errors.Join(c.Err(), s.Err()); err != nil {
		t.Errorf("the session ended: client: %v; server: %v", c.Err(), s.Err())
	}
	t.Logf("%d operations, %d losses, %d resumed, %d bytes sent again", soak.done.Load(), st.Losses, st.Resumed, st.SentAgain)
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("%d KiB more than at the start", grown>>10)
	}
	n.end(c, s)
	soak.servers.Wait()
}

type soak struct {
	t              *testing.T
	c, s           *mux.Session
	done           atomic.Int64
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
			k.servers.Go(func() {
				defer ch.Close()
				for {
					m, err := ch.Receive(bg)
					if err != nil {
						return
					}
					err = ch.Send(bg, m.Bytes())
					m.Release()
					if err != nil {
						return
					}
				}
			})
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

// count takes note of an exchange: what needs a connection.
func (k *soak) count() {
	k.done.Add(1)
	select {
	case k.progress <- struct{}{}:
	default:
	}
}

// messages exchanges some on a channel of their own.
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

// giveUp does what ends early: contexts that end, resets, closing in the middle.
// It waits for the other side first: who opens and resets without is a flood.
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
