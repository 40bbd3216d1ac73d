package top_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/top"
)

// onTerminal is a screen that runs on a terminal.
type onTerminal struct {
	*conntest.Terminal
	t      *testing.T
	before unix.Termios
	done   chan struct{} // closed when Run has returned, and err is set
	err    error

	mu     sync.Mutex // of the gateway
	fake   *fake
	panics bool
}

// Get implements top.Source.
func (s *onTerminal) Get(ctx context.Context, path string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.panics {
		panic("out of order")
	}
	return s.fake.Get(ctx, path)
}

// Kill implements top.Source.
func (s *onTerminal) Kill(ctx context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fake.Kill(ctx, id)
}

// change changes the gateway.
func (s *onTerminal) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// show runs a screen until the end of the test.
func show(t *testing.T, f *fake) *onTerminal {
	t.Helper()
	s := &onTerminal{Terminal: conntest.NewTerminal(t, 80, 24), t: t, fake: f, done: make(chan struct{})}
	s.before = s.Settings()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(s.done)
		defer func() {
			if r := recover(); r != nil {
				s.err = fmt.Errorf("panic: %v", r)
			}
		}()
		s.err = top.Run(ctx, top.Options{
			Source: s, Input: s.File, Output: s.File, Interval: top.MinInterval, View: top.Sessions, Getenv: func(string) string { return "" },
		})
	}()
	t.Cleanup(func() {
		stop()
		<-s.done
	})
	s.shows("[2 sessions]")
	if s.Settings().Lflag&(unix.ECHO|unix.ICANON) != 0 {
		t.Error("the terminal echoes keys, or waits for lines")
	}
	return s
}

// shows waits for a text on the screen.
func (s *onTerminal) shows(text string) {
	s.t.Helper()
	conntest.Eventually(s.t, fmt.Sprintf("%q is on the screen", text), func() bool { return strings.Contains(s.Screen(), text) })
}

// end waits for the end. The terminal must be as it was.
func (s *onTerminal) end() error {
	s.t.Helper()
	<-s.done
	if got := s.Settings(); got != s.before {
		s.t.Errorf("the terminal has other settings: %+v, before: %+v", got, s.before)
	}
	conntest.Eventually(s.t, "the terminal shows what it did before", func() bool { return strings.HasSuffix(s.Output(), "\x1b[?7h\x1b[?25h\x1b[?1049l") })
	return s.err
}

// TestScreen runs on a terminal until q.
func TestScreen(t *testing.T) {
	s := show(t, many(t, 30))
	s.shows("s17 ")
	if strings.Contains(s.Screen(), "s18 ") {
		t.Errorf("24 lines have more than 18 sessions:\n%s", s.Screen())
	}
	s.Resize(60, 30)
	s.shows("s23 ")
	s.Type("\x1b[B\x1b[B")
	s.Type("k")
	s.shows("End session s1? y/n")
	s.Type("y")
	s.shows("session s1 was ended")
	s.change(func() { s.fake.err = errors.New("refused") })
	s.shows("NO ANSWER for")
	s.change(func() {
		s.fake.err = nil
		s.fake.status["started"] = started.AddDate(0, 0, 1)
	})
	s.shows("the gateway was restarted")
	s.Type("\x1b")
	s.shows("?: help")
	s.Type("/user7\r")
	s.shows(`filter "user7"`)
	s.Type("\x0c?")
	s.shows("any key: back")
	s.Type("xq")
	if err := s.end(); err != nil {
		t.Error(err)
	}
	if want := "s1"; strings.Join(s.fake.killed, " ") != want {
		t.Errorf("killed %q", s.fake.killed)
	}
}

// TestScreenEnds in other ways than by q.
func TestScreenEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(s *onTerminal)
		want string
	}{
		"^C": {func(s *onTerminal) { s.Type("\x03") }, "<nil>"},
		"SIGTERM": {func(s *onTerminal) {
			if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
				s.t.Error(err)
			}
		}, "<nil>"},
		"a panic beside": {func(s *onTerminal) { s.change(func() { s.panics = true }) }, "panic: out of order"},
	} {
		t.Run(name, func(t *testing.T) {
			s := show(t, many(t, 1))
			c.end(s)
			if got := fmt.Sprint(s.end()); !strings.HasPrefix(got, c.want) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestScreenOfAGatewayThatDoesNotAnswer at the start: there is no screen, but an error.
func TestScreenOfAGatewayThatDoesNotAnswer(t *testing.T) {
	s := &onTerminal{Terminal: conntest.NewTerminal(t, 80, 24), t: t, fake: &fake{err: errors.New("refused")}}
	err := top.Run(t.Context(), top.Options{Source: s, Input: s.File, Output: s.File})
	if err == nil || err.Error() != "refused" || s.Output() != "" {
		t.Errorf("%v, %q", err, s.Output())
	}
}
