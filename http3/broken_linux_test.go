package http3_test

import (
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/http3"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// socketAt returns the descriptor of this process's socket of a kind that is bound to an address and that listens or is for datagrams.
func socketAt(t testing.TB, kind int, address string) int {
	t.Helper()
	for fd := range 4096 {
		if n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TYPE); err != nil || n != kind {
			continue
		}
		if n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); kind == syscall.SOCK_STREAM && (err != nil || n == 0) {
			continue
		}
		sa, err := syscall.Getsockname(fd)
		if in, ok := sa.(*syscall.SockaddrInet4); err == nil && ok && (&net.TCPAddr{IP: in.Addr[:], Port: in.Port}).String() == address {
			return fd
		}
	}
	t.Fatalf("no socket at %s", address)
	return -1
}

// breakTCP makes accepting fail for good.
func (w *world) breakTCP(address string) {
	w.t.Helper()
	if err := syscall.Shutdown(socketAt(w.t, syscall.SOCK_STREAM, address), syscall.SHUT_RD); err != nil {
		w.t.Fatal(err)
	}
	w.awaitFailure("stopped on TCP "+address, func() {
		if c, err := net.Dial("tcp", address); err == nil { // wakes the accept loop
			_ = c.Close()
		}
	})
}

// breakSocket puts another file in the place of a UDP socket, so that reading fails for good. The address stays in use until held is closed.
func breakSocket(t testing.TB, address string) (held int) {
	t.Helper()
	fd := socketAt(t, syscall.SOCK_DGRAM, address)
	held, err := syscall.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err == nil {
		err = syscall.Dup3(int(null.Fd()), fd, syscall.O_CLOEXEC)
		_ = null.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// breakUDP makes reading from the UDP socket fail for good. The address stays in use until free is called.
func (w *world) breakUDP(address string) (free func()) {
	w.t.Helper()
	held := breakSocket(w.t, address)
	w.awaitFailure("stopped on UDP "+address, func() {
		if c, err := net.Dial("udp", address); err == nil { // wakes the reader
			_, _ = c.Write([]byte("wake up"))
			_ = c.Close()
		}
	})
	freed := false
	free = func() {
		if !freed {
			freed = true
			_ = syscall.Close(held)
		}
	}
	w.t.Cleanup(free)
	return free
}

// awaitFailure waits until the gateway says that a socket has stopped.
func (w *world) awaitFailure(want string, wake func()) {
	w.t.Helper()
	conntest.Eventually(w.t, "the gateway says "+want, func() bool {
		wake()
		return strings.Contains(strings.Join(w.gw.Snapshot().NotReady, "\n"), want)
	})
}

// ready fails the test if a socket has failed.
func (w *world) ready() {
	w.t.Helper()
	if why := w.gw.Snapshot().NotReady; len(why) > 0 {
		w.t.Errorf("not ready: %q", why)
	}
}

// TestUDPSocketFails: HTTP/3 is not announced while its socket has failed, other clients notice nothing, and a reload opens the socket again.
func TestUDPSocketFails(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		address := w.gw.Addr("web")
		next, end := w.events(w.overTCP())
		quic := w.transport()
		w.answers(quic, w.url("/"))
		free := w.breakUDP(address)
		next("data: 1\n\n")
		if resp := w.answers(w.overTCP(), w.url("/")); resp.Header.Get("Alt-Svc") != "" {
			t.Errorf("announced: %v", resp.Header)
		}
		if err := w.gw.Reload(w.parse(standard)); err != nil {
			t.Errorf("a reload while another program has the address: %v", err)
		}
		if why := w.gw.Snapshot().NotReady; len(why) != 1 || !strings.Contains(why[0], "UDP "+address) || !strings.Contains(why[0], "cannot be opened again") {
			t.Errorf("not ready: %q", why)
		}
		w.answers(w.overTCP(), w.url("/"))
		free()
		if err := w.gw.Reload(w.parse(standard)); err != nil {
			t.Fatal(err)
		}
		w.ready()
		next("data: 2\n\n")
		if resp := w.answers(w.overTCP(), w.url("/")); !strings.Contains(resp.Header.Get("Alt-Svc"), port(t, address)) {
			t.Errorf("not announced: %v", resp.Header)
		}
		w.answers(w.transport(), "https://"+address+"/")
		next("data: 3\n\n")
		end()
	})
}

// TestTCPSocketFails: the clients of HTTP/3 and the sessions by TCP notice nothing, and a reload opens the socket again at the same port.
func TestTCPSocketFails(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		address := w.gw.Addr("web")
		tr := w.transport()
		next, end := w.events(tr)
		byTCP := w.overTCP()
		w.answers(byTCP, w.url("/"))
		w.breakTCP(address)
		next("data: 1\n\n")
		if err := w.gw.Reload(w.parse(standard)); err != nil {
			t.Fatal(err)
		}
		w.ready()
		w.answers(w.overTCP(), "https://"+address+"/")
		w.answers(byTCP, w.url("/"))
		w.answers(tr, w.url("/"))
		next("data: 2\n\n")
		if conns, _ := w.sessions(); len(conns) != 3 {
			t.Errorf("connections %v", conns)
		}
		end()
	})
}

// TestSocketsOpenedAgain: both sockets fail, and the gateway opens them again by itself.
func TestSocketsOpenedAgain(t *testing.T) {
	w := run(t, standard)
	address := w.gw.Addr("web")
	w.breakUDP(address)()
	w.breakTCP(address)
	conntest.Eventually(t, "the gateway is ready", func() bool { return len(w.gw.Snapshot().NotReady) == 0 })
	w.answers(w.overTCP(), "https://"+address+"/")
	w.answers(w.transport(), "https://"+address+"/")
	if err := w.gw.Reload(w.parse(standard)); err != nil {
		t.Error(err)
	}
}

// TestFailedSocketMoves: a reload that gives the listener another address, a name, or no HTTP/3 needs no socket that has failed.
func TestFailedSocketMoves(t *testing.T) {
	for name, change := range map[string]*strings.Replacer{
		"address": strings.NewReplacer("127.0.0.1:0", conntest.FreeAddress(t)),
		"name":    strings.NewReplacer("name: web", "name: other"),
		"key":     strings.NewReplacer("http3: true", "http3: false"),
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.ReplaceAll(standard, "127.0.0.1:0", conntest.FreeAddress(t))
			w := run(t, text)
			address := w.gw.Addr("web")
			next, end := w.events(w.overTCP())
			w.breakUDP(address)()
			w.breakTCP(address)
			if name == "address" {
				text = standard
			}
			if err := w.gw.Reload(w.parse(change.Replace(text))); err != nil {
				t.Fatal(err)
			}
			w.ready()
			listener := "web"
			if name == "name" {
				listener = "other"
			}
			w.answers(w.overTCP(), "https://"+w.gw.Addr(listener)+"/")
			if name != "key" {
				w.answers(w.transport(), "https://"+w.gw.Addr(listener)+"/")
			}
			next("data: 1\n\n")
			end()
		})
	}
}

// TestOneAddressIsTaken: a socket that cannot be opened again does not keep the listener's other one closed.
func TestOneAddressIsTaken(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		address := w.gw.Addr("web")
		free := w.breakUDP(address)
		w.breakTCP(address)
		conntest.Eventually(t, "the gateway serves by TCP", func() bool {
			return !strings.Contains(strings.Join(w.gw.Snapshot().NotReady, "\n"), "TCP")
		})
		if resp := w.answers(w.overTCP(), "https://"+address+"/"); resp.Header.Get("Alt-Svc") != "" {
			t.Errorf("announced: %v", resp.Header)
		}
		if why := w.gw.Snapshot().NotReady; len(why) != 1 || !strings.Contains(why[0], "UDP "+address) {
			t.Errorf("not ready: %q", why)
		}
		free()
		if err := w.gw.Reload(w.parse(standard)); err != nil {
			t.Fatal(err)
		}
		w.ready()
		w.answers(w.transport(), "https://"+address+"/")
	})
}

// TestDuplicateOfFailedSocket: a Listener that is made while the socket fails fails as well, or is refused. Nobody would notice otherwise.
func TestDuplicateOfFailedSocket(t *testing.T) {
	for range 20 {
		l, err := http3.Listen(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Begin(httpproxy.CarrierSettings{Limits: func() httpproxy.CarrierLimits {
			return httpproxy.CarrierLimits{MaxRequests: 1, MaxHeaderBytes: 1 << 10, ClientIdleTimeout: time.Minute}
		}, Logger: slog.New(slog.DiscardHandler)})
		failed := make(chan struct{})
		go func() {
			defer close(failed)
			if c, err := l.Accept(); err == nil {
				t.Errorf("a connection from %s", c.RemoteAddr())
			}
		}()
		defer syscall.Close(breakSocket(t, l.Addr().String()))
		c, err := net.Dial("udp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte("wake up"))
		for last, over := l, false; ; {
			select {
			case <-failed:
				over = true
			default:
			}
			next, err := last.Duplicate()
			if err != nil {
				break
			}
			if over {
				t.Fatal("a Listener of a socket that has failed")
			}
			if last != l {
				_ = last.Close()
			}
			last = next.(*http3.Listener)
		}
	}
}
