//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// TestStoppedBeforeADeadline: a process is stopped in the kernel, where it waits for data. The data comes, and then the deadline.
// When the process runs again, the wait was interrupted without a result, but the data counts.
func TestStoppedBeforeADeadline(t *testing.T) {
	if kind := os.Getenv("HEADPOND_TEST_STOPPED"); kind != "" {
		waitForDeadline(t, fiber.Kind(kind))
		return
	}
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for attempt := 1; ; attempt++ {
			result, inTime := stopBeforeDeadline(t, e.Kind(), time.Duration(attempt)*time.Second)
			if inTime {
				if result != "x" {
					t.Errorf("what came before the deadline: %s", result)
				}
				return
			}
			t.Logf("attempt %d: the data was late", attempt)
		}
	})
}

// stopBeforeDeadline returns what another process has read before a deadline, and whether that has come in time.
func stopBeforeDeadline(t *testing.T, kind fiber.Kind, timeout time.Duration) (result string, inTime bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStoppedBeforeADeadline$")
	cmd.Env = append(os.Environ(), "HEADPOND_TEST_STOPPED="+string(kind))
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	next := func() string {
		for lines.Scan() {
			if _, text, ok := strings.Cut(lines.Text(), "# "); ok {
				return text
			}
		}
		t.Fatal("the process has ended")
		return ""
	}
	e := newEngine(t, fiber.Config{Engine: fiber.Goroutine})
	peer, err := e.DialContext(t.Context(), "tcp", next())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	limit := time.Now().Add(timeout)
	fmt.Fprintf(in, "%d\n", limit.UnixNano())
	next() // it is about to wait
	for stat := "S"; !strings.HasPrefix(stat, "T"); {
		_ = cmd.Process.Signal(syscall.SIGSTOP)
		b, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, stat, _ = strings.Cut(string(b), ") ")
	}
	if _, err := peer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	inTime = time.Now().Before(limit)
	<-time.After(time.Until(limit) + 50*time.Millisecond)
	_ = cmd.Process.Signal(syscall.SIGCONT)
	return next(), inTime
}

// waitForDeadline is the other process.
func waitForDeadline(t *testing.T, kind fiber.Kind) {
	e := newEngine(t, fiber.Config{Engine: kind, Loops: 1})
	l, err := e.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fmt.Println("#", l.Addr())
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var limit int64
	if _, err := fmt.Scan(&limit); err != nil {
		t.Fatal(err)
	}
	on(c, func() {
		_ = c.SetReadDeadline(time.Unix(0, limit))
		fmt.Println("# waits")
		b := make([]byte, 1)
		err := c.(fiber.Stream).WaitReadable()
		if err == nil {
			_, err = c.Read(b)
		}
		if err != nil {
			b = []byte(err.Error())
		}
		fmt.Printf("# %s\n", b)
	})
}

// TestTryReadOfWhatIsGone: TryRead finds the deadline passed and nothing to read, although the poller was told that there is
// something. Nothing would wake the step then.
func TestTryReadOfWhatIsGone(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		if e.Kind() != fiber.Epoll {
			return // io_uring has received what it reports
		}
		peer, conn := pairOf(t, e, false)
		c := conn.(fiber.Stream)
		var b []byte
		over := false
		holds := make(chan struct{})
		written := make(chan struct{})
		go func() {
			<-holds
			_, _ = peer.Write([]byte("x"))
			close(written)
		}()
		on(conn, func() {
			limit := time.Now().Add(10 * time.Millisecond)
			_ = c.SetReadDeadline(limit)
			close(holds)
			<-written // holds the loop
			for time.Now().Before(limit) {
			}
			fiber.Sleep(1) // the next tick finds both
			raw, _ := c.SyscallConn()
			_ = raw.Control(func(fd uintptr) { _, _ = syscall.Read(int(fd), make([]byte, 10)) })
			c.Attend(func() bool {
				b, over = c.TryRead(0)
				return true
			})
		})
		if len(b) > 0 || !over {
			t.Errorf("TryRead returned %q, over: %v", b, over)
		}
	})
}
