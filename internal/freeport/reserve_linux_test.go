package freeport_test

import (
	"net"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/freeport"
)

// TestNothingAnswersAtAFreePort starts processes meanwhile: none of them may accept connections at a port that Get returned.
func TestNothingAnswersAtAFreePort(t *testing.T) {
	var done atomic.Bool
	var starters sync.WaitGroup
	defer starters.Wait()
	defer done.Store(true)
	for range 4 {
		starters.Go(func() {
			for !done.Load() {
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		port, err := freeport.Get()
		if err != nil {
			t.Fatal(err)
		}
		if c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			c.Close()
			t.Fatalf("port %d answers before a server was started there", port)
		}
	}
}
