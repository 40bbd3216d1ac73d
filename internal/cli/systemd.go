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

// notifier reports the process's state to systemd, like sd_notify(3). The methods of a nil notifier
// do nothing.
type notifier struct {
	conn     *net.UnixConn
	watchdog time.Duration // WatchdogSec of the unit; 0 if there is none
	ends     atomic.Bool   // STOPPING or MAINPID was sent: no other state must follow

	handedOver atomic.Bool // MAINPID was sent: systemd logs each further message as one that it does not accept
}

// notifyPatience bounds the time to send a message: the gateway does not wait for systemd.
const notifyPatience = time.Second

// maxStatus bounds the part of an error that systemctl shows, in bytes. The log has all of it.
const maxStatus = 500

// newNotifier returns nil if the process was not started by systemd, or the unit's Type is not notify.
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

// watchdogOf returns systemd's watchdog timeout, unless it is meant for another process.
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

// reloading reports the beginning of a reload, and over its end. Both do nothing while the gateway ends, because it
// then refuses reloads.
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
		n.tell("READY=1", "STATUS=serving; the last reload was refused: "+brief(err))
	}
}

// upgradeFailed reports why no other process has taken over.
func (n *notifier) upgradeFailed(err error) {
	if n != nil && !n.ends.Load() {
		n.tell("STATUS=serving; the last upgrade failed: " + brief(err))
	}
}

// brief returns an error as a part of a status, which is one line.
func brief(err error) string {
	why := strings.Join(strings.Fields(err.Error()), " ")
	return strings.ToValidUTF8(why[:min(len(why), maxStatus)], "")
}

func (n *notifier) stopping() {
	if n == nil || n.ends.Swap(true) {
		return
	}
	n.tell("STOPPING=1", "STATUS=draining")
}

// handOver reports that a successor is the unit's main process now. After that systemd listens to that one only.
func (n *notifier) handOver(pid int) {
	if n == nil {
		return
	}
	n.ends.Store(true)
	n.handedOver.Store(true)
	n.tell("MAINPID="+strconv.Itoa(pid), "READY=1", "STATUS=serving", "WATCHDOG=1") // systemd has ignored the first WATCHDOG of pid
}

// keepAlive notifies the watchdog twice per timeout while alive returns true, until done is closed.
func (n *notifier) keepAlive(done <-chan struct{}, alive func(context.Context) error) {
	if n == nil || n.watchdog == 0 {
		return
	}
	half := max(n.watchdog/2, time.Millisecond)
	ticker := time.NewTicker(half)
	defer ticker.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), half)
		if alive(ctx) == nil && !n.handedOver.Load() {
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
