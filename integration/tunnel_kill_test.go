package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// longWindow is the resume_window of these tests: longer than their patience, so that it never ends during a test.
const longWindow = "tunnel: {resume_window: 1h, "

// killed kills a gateway, like a crash.
func (g *gateway) killed(t testing.TB) {
	t.Helper()
	g.signal(syscall.SIGKILL)
	g.awaitEnd(t, patience)
}

// TestTunnelRestartAfterKill: a gateway that is killed and restarted can open all of its streams again. The far side
// has released those of its predecessor.
func TestTunnelRestartAfterKill(t *testing.T) {
	const streams = 900 // of max_streams: 1024
	echoAddr, _ := startEcho(t)
	peers, raw := address(t), address(t)
	far := startGateway(t, strings.Replace(farConfig(peers, "", map[string]string{"echo": echoAddr}), "tunnel: {", longWindow+"max_sessions_per_peer: 1, ", 1))
	nearText := strings.Replace(nearConfig(peers, raw, "upstream:echo"), "as: near,", "as: near, resume_window: 1h,", 1)
	near := startGateway(t, nearText)
	for turn := range 2 {
		connectMany(t, raw, streams)
		if turn == 0 {
			near.killed(t)
			near = startGateway(t, nearText)
		}
	}
	eventually(t, "the far side counts the session of the process that was killed as lost", func() error {
		if m := far.scrape(); m.sum("headpond_tunnel_lost_total") != 1 || m.sum("headpond_tunnel_sessions") != 1 {
			return fmt.Errorf("lost %v, sessions %v", m.sum("headpond_tunnel_lost_total"), m.sum("headpond_tunnel_sessions"))
		}
		return nil
	})
	far.awaitLog("session over", "peer=near", "new process")
}

// connectMany opens connections, exchanges data on each, and keeps them open.
func connectMany(t *testing.T, addr string, n int) {
	t.Helper()
	var all sync.WaitGroup
	places := make(chan struct{}, 50)
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			want := fmt.Sprintf("%05d", i)
			got := make([]byte, len(want))
			if _, err = io.WriteString(c, want); err == nil {
				_, err = io.ReadFull(c, got)
			}
			if err != nil || string(got) != want {
				t.Errorf("connection %d: %q, %v", i, got, err)
			}
		})
	}
	all.Wait()
}

// TestTunnelKilledFreesLocks: a PostgreSQL lock taken through a tunnel by a killed process is released when its
// successor has connected.
func TestTunnelKilledFreesLocks(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "locked")
	peers, sql := address(t), address(t)
	startGateway(t, strings.Replace(farConfig(peers, "", map[string]string{"pg": db.server.Addr()}), "tunnel: {", longWindow, 1))
	nearText := join(strings.Replace(db.pgConfig(t, sql, "session", "max_size: 4"),
		"endpoints: ["+db.server.Addr()+"]", "tunnel: far\n    endpoints: [\"upstream:pg\"]", 1)) +
		fmt.Sprintf("tunnels:\n  far: {connect: \"%s\", as: near, psk: %s, resume_window: 1h}\n", peers, tunnelPSK)
	near := startGateway(t, nearText)
	holder := connect(t, db.dsn(sql))
	if _, err := holder.Exec(context.Background(), "select pg_advisory_lock(42)"); err != nil {
		t.Fatal(err)
	}
	direct := connect(t, db.dsn(db.server.Addr()))
	locked := func() (free bool) {
		if err := direct.QueryRow(context.Background(), "select pg_try_advisory_lock(42)").Scan(&free); err != nil {
			t.Fatal(err)
		}
		return free
	}
	if locked() {
		t.Fatal("the lock is free")
	}
	near.killed(t)
	startGateway(t, nearText)
	eventually(t, "the lock is free", func() error {
		if !locked() {
			return errors.New("it is held")
		}
		return nil
	})
}

// TestTunnelFarKilled: the remaining side counts the loss, resets the streams, and uses the successor.
func TestTunnelFarKilled(t *testing.T) {
	echoAddr, _ := startEcho(t)
	peers, raw := address(t), address(t)
	farText := farConfig(peers, "", map[string]string{"echo": echoAddr})
	far := startGateway(t, farText)
	near := startGateway(t, nearConfig(peers, raw, "upstream:echo"))
	c := hold(t, raw)
	far.killed(t)
	startGateway(t, farText)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a stream of the one that was killed: %v, want a reset", err)
	}
	eventually(t, "the successor is used", func() error { return exchange(raw, "hello") })
	eventually(t, "the session is counted as lost", func() error {
		if n := near.scrape().sum("headpond_tunnel_lost_total"); n != 1 {
			return fmt.Errorf("lost %v", n)
		}
		return nil
	})
}

// hold opens a connection and keeps it open.
func hold(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err = io.WriteString(c, "held"); err == nil {
		_, err = io.ReadFull(c, make([]byte, 4))
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// TestTunnelKeepAlive: a stopped peer is noticed after keep_alive, and its streams continue when it continues.
func TestTunnelKeepAlive(t *testing.T) {
	echoAddr, _ := startEcho(t)
	peers, raw := address(t), address(t)
	far := startGateway(t, farConfig(peers, "", map[string]string{"echo": echoAddr}))
	near := startGateway(t, strings.Replace(nearConfig(peers, raw, "upstream:echo"), "as: near,", "as: near, keep_alive: 1s,", 1))
	c := hold(t, raw)
	far.signal(syscall.SIGSTOP)
	eventually(t, "the socket is given up", func() error {
		if m := near.scrape(); m.sum("headpond_tunnel_sockets_lost_total") < 1 {
			return errors.New("it is not")
		}
		return nil
	})
	near.awaitLog("connection lost, session kept", "silent", "tunnel=far")
	far.signal(syscall.SIGCONT)
	if _, err := io.WriteString(c, "still"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Error(err)
	}
}

// TestTunnelClientGetsReset: a connection whose stream cannot be opened is reset. A close would look like an empty
// answer.
func TestTunnelClientGetsReset(t *testing.T) {
	echoAddr, _ := startEcho(t)
	peers, raw, none, forbidden := address(t), address(t), address(t), address(t)
	startGateway(t, strings.Replace(farConfig(peers, "", map[string]string{"echo": echoAddr}), "tunnel: {", "tunnel: {max_streams: 1, ", 1))
	soon := strings.Replace(nearConfigListeners(raw), patient, "connect_timeout: 5s", 1) // what is too much waits that long
	near := startGateway(t, join(soon, fmt.Sprintf(`listeners:
  - {name: none, protocol: tcp, listen: "%s", upstream: none}
  - {name: forbidden, protocol: tcp, listen: "%s", upstream: forbidden}
upstreams:
  none: {endpoints: ["upstream:echo"], tunnel: nowhere}
  forbidden: {endpoints: ["192.0.2.1:22"], tunnel: far}
`, none, forbidden))+fmt.Sprintf("tunnels:\n  far: {connect: \"%s\", as: near, psk: %s}\n  nowhere: {connect: \"%s\", as: near, psk: %[2]s}\n", peers, tunnelPSK, address(t)))
	// No exchange before it: the far side may learn of its stream's end after the beginning of the next one.
	near.awaitLog("tunnel: session begun", "tunnel=far")
	hold(t, raw) // all permitted streams
	for name, addr := range map[string]string{"too many": raw, "no session": none, "forbidden": forbidden} {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err = c.Read(make([]byte, 1))
			_ = c.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want a reset", name, err)
		}
	}
}
