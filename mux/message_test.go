package mux_test

import (
	"fmt"
	"testing"

	"github.com/headpond/headpond/mux"
)

func TestMessagesKeepTheirBounds(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, name, mux.Config{}, mux.Config{})
			here, there := channels(t, c, s)
			sizes := []int{0, 1, 100, 1024, 4095, 4096, 4097, 16 << 10, 32<<10 - 4, 32 << 10, 64 << 10, 200 << 10, 1 << 20, 5 << 20, 0}
			errs := make(chan error, 1)
			go func() {
				for _, n := range sizes {
					if err := here.Send(bg, pattern(n)); err != nil {
						errs <- fmt.Errorf("%d bytes: %w", n, err)
						return
					}
				}
				errs <- nil
			}()
			for _, n := range sizes {
				expect(t, there, pattern(n))
			}
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		})
	}
}
