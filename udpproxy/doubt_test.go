package udpproxy_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headpond/headpond/udpproxy"
)

// TestDoubt: refusals are believed a while after the client has sent something, however long they have come before that.
func TestDoubt(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(100*seconds), 0) }
	refusal, patience := errors.New("refused"), *udpproxy.RefusalTime
	var d udpproxy.Doubt
	if got := d.Believed(at(9)); !got.IsZero() {
		t.Errorf("without a refusal: %v", got)
	}
	d.Raise(refusal, at(1), at(2))
	if got := d.Believed(at(9)); !got.IsZero() {
		t.Errorf("the endpoint has sent something after it: %v", got)
	}
	d.Raise(refusal, at(4), at(2))
	if got := d.Believed(at(3)); !got.IsZero() {
		t.Errorf("the client has sent nothing since: %v", got)
	}
	d.Raise(refusal, at(20), at(2))
	for _, last := range []time.Time{at(21), at(30)} { // what it sends later changes nothing
		if got := d.Believed(last); !got.Equal(at(21).Add(patience)) {
			t.Errorf("believed at %v, want %v after the client's first datagram", got, patience)
		}
	}
}
