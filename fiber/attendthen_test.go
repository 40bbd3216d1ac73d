package fiber_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// AttendThen passes data on without a fiber, and then runs once, on a fiber, when the step is over.
func TestAttendThen(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, c := range eitherCases {
			peerA, a, b, peerB := chain(t, e, "tcp")
			began, done := make(chan bool), make(chan error, 2)
			fiber.Spawn(a, func() {
				from, to := a.(fiber.Stream), b.(fiber.Stream)
				other, over := false, false
				began <- from.AttendThen(b, func() bool {
					for {
						var data []byte
						if data, other, over = from.TryReadEither(b, 0); len(data) == 0 {
							return other || over
						}
						if strings.HasSuffix(string(data), "over") {
							return true
						}
						if to.TryWrite(data) < len(data) {
							panic("no room")
						}
					}
				}, func(panicked any) {
					ready, err := a, error(nil)
					if other {
						ready = b
					}
					if other || over {
						_, err = ready.Read(make([]byte, 1))
					}
					if panicked != nil || other != c.want.other {
						err = fmt.Errorf("panicked with %v, other = %v (%w)", panicked, other, err)
					}
					done <- err
				})
			})
			if !<-began {
				t.Fatal("AttendThen returned false")
			}
			for _, text := range []string{"one", "two", "three"} {
				_, _ = io.WriteString(peerA, text)
				if _, err := io.ReadFull(peerB, make([]byte, len(text))); err != nil {
					t.Fatal(err)
				}
				awaitNoFibers(t, e)
			}
			c.do(a, b, peerA, peerB)
			if name == "data" { // the step has passed it on
				_, _ = io.WriteString(peerA, "over")
			}
			if got, want := <-done, cmp.Or(c.want.err, c.read); !errors.Is(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
}

// A panic of the step goes to then. Connections that have no loop in common are refused.
func TestAttendThenPanics(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		peerA, a, b, _ := chain(t, e, "tcp")
		got := make(chan any, 1)
		fiber.Spawn(a, func() {
			from := a.(fiber.Stream)
			if other, _ := net.Pipe(); from.AttendThen(other, nil, nil) {
				t.Error("AttendThen took a connection of package net")
			}
			from.AttendThen(b, func() bool {
				if data, _, _ := from.TryReadEither(b, 0); len(data) > 0 {
					panic(strings.ToUpper(string(data)))
				}
				return false
			}, func(panicked any) { got <- panicked })
		})
		_, _ = io.WriteString(peerA, "oops")
		if p := <-got; p != "OOPS" {
			t.Errorf("then got %v", p)
		}
	})
}
