package peers_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// countedWrites counts the writes to a socket.
type countedWrites struct {
	net.Conn
	writes atomic.Int64
	inside atomic.Bool // a write is under way
}

func (c *countedWrites) Write(p []byte) (int, error) {
	c.writes.Add(1)
	c.inside.Store(true)
	defer c.inside.Store(false)
	return c.Conn.Write(p)
}

// securePair is a connection with TLS as nodes have it, and the socket below its first end.
func securePair(t *testing.T) (here, there sec.SecureConn, socket *countedWrites) {
	t.Helper()
	near, far := conntest.Pair(t, "tcp", "127.0.0.1:0")
	socket = &countedWrites{Conn: near}
	client, _ := peers.NewTLS(t, newKey(t))
	server, id := peers.NewTLS(t, newKey(t))
	accepted := make(chan error, 1)
	go func() {
		var err error
		there, err = server.SecureInbound(context.Background(), far, peer.ID(""))
		accepted <- err
	}()
	here, err := client.SecureOutbound(context.Background(), socket, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there, socket
}

// TestJoinedRecords: what is written at once reaches the socket in one write, although TLS makes several records of it, and nothing of it is
// held back, lost or mixed up.
func TestJoinedRecords(t *testing.T) {
	here, there, socket := securePair(t)
	all := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	sent := make(chan error, 1)
	write := func(p []byte) {
		_, err := here.Write(p)
		sent <- err
	}
	get := func(want []byte) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(there, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("not the %d bytes that were sent: %v", len(want), err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	go write(all) // beyond the small records at the beginning of a connection
	get(all)
	for size, most := range map[int]int64{1: 1, 16 << 10: 1, 128 << 10: 1, 1 << 20: 9} {
		before := socket.writes.Load()
		go write(all[:size])
		get(all[:size])
		if n := socket.writes.Load() - before; n > most {
			t.Errorf("%d bytes took %d writes, want %d at most", size, n, most)
		}
	}
	_ = socket.Close()
	if _, err := here.Write(all); err == nil {
		t.Error("a write to a closed socket succeeded")
	}
}

// TestCloseDuringWrite: closing a connection whose other side does not read ends the write at once, and does not wait until TLS gives up.
func TestCloseDuringWrite(t *testing.T) {
	here, _, socket := securePair(t)
	failed := make(chan error, 1)
	go func() {
		for {
			if _, err := here.Write(make([]byte, 60<<10)); err != nil {
				failed <- err
				return
			}
		}
	}()
	seen, same := int64(0), 0
	conntest.Eventually(t, "a write waits for the other side", func() bool {
		if n := socket.writes.Load(); n != seen || !socket.inside.Load() {
			seen, same = n, 0
		}
		same++
		return same > 20
	})
	_ = here.Close()
	var timeout net.Error
	if err := <-failed; errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the write ended with %v", err)
	}
}
