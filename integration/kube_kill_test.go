//go:build kube

package integration

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The load of TestKubeKill.
const (
	killWorkers = 4
	kills       = 4
)

// How far a request has come on its connection.
const (
	toConnect  = iota // there is no connection
	toBeHeard         // the ClientHello is on its way: nothing has come back
	toShake           // within the TLS handshake
	toBeServed        // within the request
	phases
)

var phaseNames = [phases]string{"not connected", "nothing heard", "in the handshake", "in the request"}

// heardConn records that its client has read something.
type heardConn struct {
	net.Conn
	heard atomic.Bool
}

func (c *heardConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

// killLoad is requests on one way to the servers, each on its own connection.
type killLoad struct {
	name     string
	dial     func() (net.Conn, error)
	requests atomic.Int64
	failed   [phases]atomic.Int64
}

// ask sends one request on a connection of its own, and returns how far it came.
func (c *kubeCluster) ask(dial func() (net.Conn, error)) (phase int, err error) {
	raw, err := dial()
	if err != nil {
		return toConnect, err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	conn := &heardConn{Conn: raw}
	t := tls.Client(conn, c.tls)
	if err := t.Handshake(); err != nil {
		if conn.heard.Load() {
			return toShake, err
		}
		return toBeHeard, err
	}
	_, err = fmt.Fprintf(t, "GET /api/v1/namespaces/default HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", serviceName, adminToken)
	if err != nil {
		return toBeServed, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(t), nil)
	if err != nil {
		return toBeServed, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return toBeServed, err
}

// dialAny connects to any of the servers, or, if that fails, to another one: the best that clients without a proxy can do.
func (c *kubeCluster) dialAny() (conn net.Conn, err error) {
	for _, i := range rand.Perm(len(c.servers)) {
		if conn, err = net.Dial("tcp", c.servers[i].address()); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// run sends requests until stop. Each failure is recorded in failures.
func (l *killLoad) run(c *kubeCluster, stop <-chan struct{}, failures chan<- string) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		phase, err := c.ask(l.dial)
		l.requests.Add(1)
		if err != nil {
			l.failed[phase].Add(1)
			select {
			case failures <- fmt.Sprintf("%s, %s: %v", l.name, phaseNames[phase], err):
			default: // there are enough
			}
		}
	}
}

// TestKubeKill kills one server after the other, with clients behind the gateway, behind HAProxy and without a proxy at the same time. Requests whose
// server had them may fail, as they do without a proxy. Behind the gateway no other may: those that have no connection yet, and those that have
// heard nothing.
func TestKubeKill(t *testing.T) {
	c := startKube(t)
	listen := address(t)
	c.before(listen)
	haproxy := c.startHAProxy()
	to := func(address string) func() (net.Conn, error) {
		return func() (net.Conn, error) { return net.Dial("tcp", address) }
	}
	loads := []*killLoad{{name: "headpond", dial: to(listen)}, {name: "haproxy", dial: to(haproxy)}, {name: "direct", dial: c.dialAny}}
	stop, failures := make(chan struct{}), make(chan string, 30)
	var running sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); running.Wait() })
	t.Cleanup(end)
	for _, l := range loads {
		eventually(t, l.name+" serves", func() error { _, err := c.ask(l.dial); return err })
		for range killWorkers {
			running.Go(func() { l.run(c, stop, failures) })
		}
	}
	for i := range kills {
		s := c.servers[i%len(c.servers)]
		wait(4 * time.Second)
		s.kill()
		wait(4 * time.Second)
		s.start()
		s.awaitReady()
	}
	end()
	close(failures)
	rows := []string{"| way | requests | " + strings.Join(phaseNames[:], " | ") + " |", "|---" + strings.Repeat("|---", 1+int(phases)) + "|"}
	for _, l := range loads {
		row := fmt.Sprintf("| %s | %d |", l.name, l.requests.Load())
		for i := range l.failed {
			row += fmt.Sprintf(" %d |", l.failed[i].Load())
		}
		rows = append(rows, row)
	}
	for text := range failures {
		t.Log(text)
	}
	t.Logf("engine %s, %d kills, failed requests by how far they had come:\n%s", os.Getenv("HEADPOND_ENGINE"), kills, strings.Join(rows, "\n"))
	// Few clients, if any, may hear nothing: the reset overtakes the server's first bytes within the gateway, or the server's stream ends
	// before the ClientHello has come, and the client learns of that.
	if f := &loads[0].failed; f[toConnect].Load() > 0 || f[toBeHeard].Load() > kills {
		t.Error("requests failed of which no server can have sent an answer")
	}
}
