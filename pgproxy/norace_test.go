//go:build !race

package pgproxy_test

import (
	"bytes"
	"testing"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestNoAllocations makes requests and counts what the proxy allocates for them. The race
// detector lets pools forget, so that it cannot be counted there.
func TestNoAllocations(t *testing.T) {
	rounds := map[string]func(){"conversation": startConversation(t), "replay": judgeTurns(t)}
	for kind := range steady {
		rounds[kind] = startSteady(t, kind, pgproxy.Transaction)
		rounds[kind+" in session mode"] = startSteady(t, kind, pgproxy.Session)
	}
	for kind, round := range rounds {
		for range 100 {
			round()
		}
		if n := testing.AllocsPerRun(200, round); n > 0 {
			t.Errorf("%s: %v allocations for each transaction", kind, n)
		}
	}
}

// TestEndlessPipeline sends endless requests that the gateway answers itself, while the server is
// busy: the pending answers must be bounded.
func TestEndlessPipeline(t *testing.T) {
	g, f := startFake(t, nil)
	logged := make(chan *wire, 1)
	go func() { logged <- g.dial(t) }()
	srv := <-f.conns
	w := <-logged
	w.send(&pgwire.Parse{Query: "slow"}, &pgwire.Flush{})
	srv.read()
	request := bytes.Repeat(bytesOf(&pgwire.Close{Object: 'S', Name: "headpond_"}), 1000)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for range 2000 {
			if _, err := w.Write(request); err != nil {
				return
			}
		}
	}()
	if _, body := w.until(pgwire.TypeErrorResponse); !has(body, "C54000\x00") {
		t.Errorf("%q", body)
	}
	_ = w.Close()
	<-written
}
