package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// notifier reports the process's state to systemd, as sd_notify(3) does. A nil one does nothing.
type notifier struct {
	conn     *net.UnixConn
	watchdog time.Duration // WatchdogSec of the unit; 0 = none
	ends     atomic.Bool   // STOPPING was sent: READY must not follow
}

// notifyPatience bounds the time a message may take: the gateway does not wait for systemd.
const notifyPatience = time.Second

// maxStatus is how much of an error systemctl shows, in bytes; the log has all of it.
const maxStatus = 500

// newNotifier returns nil where the process is not started by systemd, or the unit's Type is not notify.
func newNotifier() (*notifier, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: cannot report to systemd that the gateway is ready: %w", err)
	}
	return &notifier{conn: conn, watchdog: watchdogOf(os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID"))}, nil
}

// watchdogOf reads systemd's watchdog time-out, which may be meant for another process.
func watchdogOf(usec, pid string) time.Duration {
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(maxWatchdog/time.Microsecond) || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// maxWatchdog bounds WATCHDOG_USEC: longer than any unit needs.
const maxWatchdog = 365 * 24 * time.Hour

// tell sends assignments such as READY=1 in one message.
func (n *notifier) tell(assignments ...string) {
	if n == nil {
		return
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(notifyPatience))
	_, _ = n.conn.Write([]byte(strings.Join(assignments, "\n"))) // best effort: systemd may not listen
}

func (n *notifier) ready() { n.tell("READY=1", "STATUS=serving") }

// reloading reports that a reload has begun, and over that it has ended. Both do nothing once the gateway ends, because
// it then refuses reloads.
func (n *notifier) reloading() (over func(error)) {
	if n == nil || n.ends.Load() {
		return func(error) {}
	}
	n.tell("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(monotonicMicroseconds(), 10))
	return func(err error) {
		switch {
		case n.ends.Load():
			return
		case err == nil:
			n.ready()
			return
		}
		why := strings.Join(strings.Fields(err.Error()), " ") // a status is one line
		n.tell("READY=1", "STATUS=serving; the last reload was refused: "+strings.ToValidUTF8(why[:min(len(why), maxStatus)], ""))
	}
}

func (n *notifier) stopping() {
	if n != nil {
		n.ends.Store(true)
	}
	n.tell("STOPPING=1", "STATUS=draining")
}

// keepAlive notifies the watchdog twice in its time, as long as alive returns true, until done is closed.
func (n *notifier) keepAlive(done <-chan struct{}, alive func(context.Context) error) {
	if n == nil || n.watchdog == 0 {
		return
	}
	half := max(n.watchdog/2, time.Millisecond)
	ticker := time.NewTicker(half)
	defer ticker.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), half)
		if alive(ctx) == nil {
			n.tell("WATCHDOG=1")
		}
		cancel()
		select {
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// close closes the socket to systemd.
func (n *notifier) close() {
	if n != nil {
		_ = n.conn.Close()
	}
}
