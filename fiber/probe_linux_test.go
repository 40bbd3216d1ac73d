//go:build amd64 || arm64

package fiber_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
)

// deny names, for the test binary run once more, an engine and system calls it must do without.
const deny = "HEADPOND_TEST_DENY"

// forbid has the kernel refuse system calls to this process, as a container's seccomp filter does.
func forbid(calls ...uint32) error {
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	program := []unix.SockFilter{{Code: load}} // the number of the call
	for i, call := range calls {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jt: uint8(len(calls) - i)})
	}
	program = append(program, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// TestProbeHere is run by TestProbe in a separate process; it reports which engine there is.
func TestProbeHere(t *testing.T) {
	kind, names, ok := strings.Cut(os.Getenv(deny), ":")
	if !ok {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // package net has its poller from now on
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	var calls []uint32
	for name := range strings.FieldsSeq(names) {
		calls = append(calls, map[string]uint32{
			"io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER,
			"epoll_create1": unix.SYS_EPOLL_CREATE1,
		}[name])
	}
	if err := forbid(calls...); err != nil {
		t.Fatal(err)
	}
	e, err := fiber.New(fiber.Config{Engine: fiber.Kind(kind)})
	if err != nil {
		fmt.Printf("chosen: none %v: %q\n", errors.Is(err, fiber.ErrUnavailable), err)
		return
	}
	defer e.Close()
	c, s := pair(t, e, "tcp")
	exchange(t, c, s, 1000)
	_, _ = c.Close(), s.Close()
	fmt.Printf("chosen: %s: %q\n", e.Kind(), e.Reason())
}

// The engine is the best one that the system allows, and reports why it is not a better one; an engine asked for by
// name is that one or an error.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		asked, denied, chosen string
		reasons               []string
	}{
		{"auto", "io_uring_setup", "epoll", []string{"uring: io_uring_setup: operation not permitted"}},
		{"auto", "io_uring_enter", "epoll", []string{"uring: io_uring"}},
		{"auto", "io_uring_register", "epoll", []string{"uring: io_uring_register"}},
		{"auto", "io_uring_setup epoll_create1", "goroutine", []string{"io_uring_setup", "epoll: epoll_create1: operation not permitted"}},
		{"epoll", "io_uring_setup", "epoll", []string{"configured"}},
		{"goroutine", "io_uring_setup epoll_create1", "goroutine", []string{"configured"}},
		{"uring", "io_uring_setup", "none true", []string{"io_uring_setup: operation not permitted"}},
		{"epoll", "epoll_create1", "none true", []string{"epoll_create1: operation not permitted"}},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProbeHere$")
		cmd.Env = append(os.Environ(), deny+"="+c.asked+":"+c.denied, "GORACE=atexit_sleep_ms=0")
		out, err := cmd.CombinedOutput()
		got := string(out)
		if err != nil || !strings.Contains(got, "chosen: "+c.chosen+":") {
			t.Errorf("%s without %s: %v, want %s\n%s", c.asked, c.denied, err, c.chosen, got)
		}
		for _, reason := range c.reasons {
			if !strings.Contains(got, reason) {
				t.Errorf("%s without %s: the reason lacks %q: %s", c.asked, c.denied, reason, got)
			}
		}
	}
}
