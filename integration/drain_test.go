package integration

import (
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// tcpConfig is a tcp listener for a backend; more contains further keys of the listener.
func tcpConfig(listen, backend, more string) string {
	return fmt.Sprintf(`listeners:
  - name: raw
    protocol: tcp
    listen: %s
    upstream: echo
%supstreams:
  echo:
    endpoints: [%s]
    pool: {max_size: 100}
`, listen, more, backend)
}

// awaitRefused waits until the address refuses connections.
func awaitRefused(t *testing.T, addr string) {
	t.Helper()
	eventually(t, "new connections to "+addr+" are refused", func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return fmt.Errorf("it accepts")
		}
		return nil
	})
}

// TestDrainLetsSessionsFinish: at SIGTERM a running request, a transaction and a byte stream
// continue to their ends, idle clients are disconnected, and the process exits with 0.
func TestDrainLetsSessionsFinish(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t), "drain")
	backend := startHTTP(t)
	echoAddr, _ := startEcho(t)
	web, sql, raw := address(t), address(t), address(t)
	g := startGateway(t, join(httpConfig(web, "max_size: 4", backend.addr()),
		db.pgConfig(t, sql, "transaction", "max_size: 4"), tcpConfig(raw, echoAddr, "")), withDrainTimeout(patience))

	request := make(chan error, 1)
	go func() {
		code, body, err := get(httpClient(t), "http://"+web+"/wait")
		if err == nil && (code != http.StatusOK || body != "released\n") {
			err = fmt.Errorf("%d %q", code, body)
		}
		request <- err
	}()
	backend.awaitHold(t)
	idle, busy := connect(t, db.dsn(sql)), connect(t, db.dsn(sql))
	tx, err := busy.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream := dial(t, raw)
	conntest.Exchange(t, stream, "ping")

	g.signal(syscall.SIGTERM)
	for _, addr := range []string{web, sql, raw} {
		awaitRefused(t, addr)
	}
	if code, _ := g.get("/readyz"); code != http.StatusServiceUnavailable && code != 0 {
		t.Errorf("/readyz answers %d while draining", code)
	}
	conntest.Exchange(t, stream, "ping")
	finishTransaction(t, tx)
	_ = stream.Close()
	backend.release()
	if err := <-request; err != nil {
		t.Errorf("the request that was under way: %v", err)
	}
	if code := g.awaitEnd(t, 2*patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	_, err = idle.Exec(t.Context(), "select 1")
	if err == nil {
		t.Error("an idle client was not disconnected")
	}
}

func finishTransaction(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), "create table kept (n int)"); err != nil {
		t.Errorf("a transaction that was open: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("its commit: %v", err)
	}
}

// TestDrainTimeoutCutsOff: a session that does not end is cut off after drain_timeout.
func TestDrainTimeoutCutsOff(t *testing.T) {
	echoAddr, _ := startEcho(t)
	raw := address(t)
	g := startGateway(t, tcpConfig(raw, echoAddr, ""), withDrainTimeout(time.Second))
	stream := dial(t, raw)
	conntest.Exchange(t, stream, "ping")
	g.signal(syscall.SIGTERM)
	if n, err := stream.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a session that was to be cut off", n)
	}
	g.awaitEnd(t, patience)
	g.awaitLog("drain")
}

// TestSecondSignalEndsAtOnce: a second SIGTERM ends the drain.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	echoAddr, _ := startEcho(t)
	raw := address(t)
	g := startGateway(t, tcpConfig(raw, echoAddr, ""), withDrainTimeout(time.Hour))
	stream := dial(t, raw)
	conntest.Exchange(t, stream, "ping")
	g.signal(syscall.SIGTERM)
	awaitRefused(t, raw)
	if g.Ended() {
		t.Fatal("it ended at the first signal, with a session open")
	}
	g.signal(syscall.SIGTERM)
	if code := g.awaitEnd(t, patience); code == 0 {
		t.Error("exit code 0, though a session was cut off")
	}
}
