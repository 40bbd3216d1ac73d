package top

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// screen is the shell of a Model on a terminal.
type screen struct {
	model    *Model
	source   Source
	terminal *terminal
	palette  Palette

	keys     chan []Key
	pictures chan Picture
	killed   chan outcome
	crashes  chan crash
	signals  chan os.Signal
	tasks    sync.WaitGroup

	asking bool // a request is under way
	again  bool // another one is to follow it at once
}

// outcome is that of a Kill.
type outcome struct {
	id  string
	err error
}

func newScreen(m *Model, o Options, out *os.File) (*screen, error) {
	t, err := newTerminal(o.Input, out)
	if err != nil {
		return nil, err
	}
	return &screen{
		model: m, source: o.Source, terminal: t, palette: PaletteOf(o.Getenv),
		keys: make(chan []Key), pictures: make(chan Picture), killed: make(chan outcome), crashes: make(chan crash, 1), signals: make(chan os.Signal, 8),
	}, nil
}

// run shows the screen until it ends. Goroutines ask the gateway and read keys; only run itself touches the model.
func (s *screen) run(ctx context.Context) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer func() { // also after a panic
		stop()
		s.terminal.leave()
		s.terminal.stop()
		s.tasks.Wait()
	}()
	signal.Notify(s.signals, append([]os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}, terminalSignals...)...)
	defer signal.Stop(s.signals)
	if err := s.terminal.enter(); err != nil {
		return err
	}
	s.spawn(func() { s.readKeys(ctx) })
	tick := time.NewTimer(s.model.Interval)
	defer tick.Stop()
	for {
		s.model.Width, s.model.Height = s.terminal.size()
		if err := s.terminal.write(s.palette.Draw(s.model.Frame(time.Now()))); err != nil {
			return err
		}
		actions, over := s.wait(ctx, tick)
		for _, a := range actions {
			over = s.act(ctx, a) || over
		}
		if over {
			return nil
		}
	}
}

// wait waits for the next event and shows it to the model. over: the screen ends.
func (s *screen) wait(ctx context.Context, tick *time.Timer) (actions []Action, over bool) {
	select {
	case <-ctx.Done():
		return nil, true
	case c := <-s.crashes:
		panic(c)
	case keys, ok := <-s.keys:
		before := s.model.Interval
		for _, k := range keys {
			actions = append(actions, s.model.Press(k)...)
		}
		if s.model.Interval != before {
			tick.Reset(s.model.Interval)
		}
		return actions, !ok
	case p := <-s.pictures:
		s.asking = false
		actions = s.model.Update(p)
		if s.again {
			actions = append(actions, Action{Do: Poll})
		}
		return actions, false
	case k := <-s.killed:
		return s.model.Killed(k.id, k.err), false
	case sig := <-s.signals:
		return s.signaled(sig)
	case <-tick.C:
		tick.Reset(s.model.Interval)
		if !s.model.Paused() && !s.asking {
			actions = []Action{{Do: Poll}}
		}
		return actions, false
	}
}

// signaled handles a signal. Every frame asks for the size, so that SIGWINCH needs no more than that.
func (s *screen) signaled(sig os.Signal) (actions []Action, over bool) {
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP:
		return nil, true
	case suspendSignal:
		return []Action{{Do: Suspend}}, false
	}
	return nil, false
}

// act does what the model asks for. over: the screen ends.
func (s *screen) act(ctx context.Context, a Action) (over bool) {
	switch a.Do {
	case Poll:
		if s.again = s.asking; !s.asking {
			s.asking = true
			query := s.model.Query()
			s.spawn(func() { send(ctx, s.pictures, Ask(ctx, s.source, query)) })
		}
	case Kill:
		s.spawn(func() {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			send(ctx, s.killed, outcome{a.ID, s.source.Kill(ctx, a.ID)})
		})
	case Redraw:
		s.terminal.clear()
	case Suspend:
		s.terminal.suspend(s.signals)
		s.again = s.asking
		return !s.asking && s.act(ctx, Action{Do: Poll})
	case Quit:
		return true
	}
	return false
}

// send sends to run, unless it has ended.
func send[T any](ctx context.Context, to chan<- T, v T) {
	select {
	case to <- v:
	case <-ctx.Done():
	}
}

// spawn begins a goroutine that run waits for. Its panics are run's.
func (s *screen) spawn(f func()) {
	s.tasks.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				select {
				case s.crashes <- crash{r, debug.Stack()}:
				default: // one is enough
				}
			}
		}()
		f()
	})
}

// escapeDelay is how long the rest of a key's sequence may take after its ESC, on a slow line.
const escapeDelay = 50 * time.Millisecond

// readKeys is a goroutine that reads keys until the terminal is stopped or gone.
func (s *screen) readKeys(ctx context.Context) {
	defer close(s.keys)
	var pending []byte
	buffer := make([]byte, 256)
	for {
		patience := time.Duration(-1)
		if len(pending) > 0 {
			patience = escapeDelay
		}
		n, err := s.terminal.read(buffer, patience)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // it was stopped, or is gone
		}
		var keys []Key
		keys, pending = decode(append(pending, buffer[:n]...), err != nil)
		pending = append([]byte(nil), pending...)
		if len(keys) > 0 {
			send(ctx, s.keys, keys)
		}
	}
}
