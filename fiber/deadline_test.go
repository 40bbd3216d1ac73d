package fiber_test

import (
	"net"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Of two deadlines the one that was set last holds, also if a goroutine has set the first, of which the loop hears later, and a
// fiber of the loop the second.
func TestTheLastDeadlineHolds(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		type setter func(c net.Conn, at time.Time) error
		for name, set := range map[string]setter{"SetDeadline": net.Conn.SetDeadline, "SetReadDeadline": net.Conn.SetReadDeadline, "SetWriteDeadline": net.Conn.SetWriteDeadline} {
			c, s := pair(t, e, "tcp")
			first := func(at time.Time) { // the loop does nothing else meanwhile
				set1 := make(chan error)
				go func() { set1 <- set(s, at) }()
				if err := <-set1; err != nil {
					t.Error(err)
				}
			}
			use := func() error {
				go func() { _, _ = c.Write([]byte("x")) }()
				if _, err := s.Read(make([]byte, 1)); err != nil {
					return err
				}
				_, err := s.Write([]byte("y"))
				return err
			}
			on(s, func() {
				first(time.Unix(1, 0))
				_ = set(s, time.Time{})
				fiber.Sleep(time.Millisecond) // the loop hears of the first
				if err := use(); err != nil {
					t.Errorf("%s: %v, and its last call set no deadline", name, err)
				}
				_ = set(s, time.Time{})
				first(time.Unix(1, 0))
				fiber.Sleep(time.Millisecond)
				if err := use(); err == nil {
					t.Errorf("%s: no error, and its last call set a deadline that has passed", name)
				}
				_ = s.SetDeadline(time.Time{})
				if err := use(); err != nil {
					t.Errorf("%s: %v after all deadlines were removed", name, err)
				}
			})
			_, _ = c.Close(), s.Close()
		}
	})
}
