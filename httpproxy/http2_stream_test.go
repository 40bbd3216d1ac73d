package httpproxy_test

import (
	"net"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool/httppool"
)

// TestHTTP2ResetJustBeforeUse: a stream that was reset while its server's connection was being leased gives that back, and must not
// close it at its own end, when others use it.
func TestHTTP2ResetJustBeforeUse(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c, err := httppool.NewConn(t.Context(), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if httpproxy.HeldAfterReset(c) {
		t.Error("the stream still closes the connection")
	}
}

// TestHTTP2SendingForOthers: who sends what has come together for a client is not kept at it for as long as others have something to
// send; it may have a connection to give back, or an upload to go on with.
func TestHTTP2SendingForOthers(t *testing.T) {
	returned := make(chan struct{})
	kept := false
	err := httpproxy.FlushAmongOthers(1000, func(i int) {
		if i != 100 {
			return
		}
		select {
		case <-returned:
		case <-time.After(patience):
			kept = true
		}
	}, func() { close(returned) })
	if err != nil || kept {
		t.Errorf("%v, kept: %t", err, kept)
	}
}
