package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/netaddr"
)

// socket is a bound address. One proxy at a time accepts from it.
type socket struct {
	net.Listener
	retired atomic.Bool // closed by the gateway, which is not a failure
	unlink  bool        // closing it removes the file of a unix socket

	// Gateway.mu guards these; see reopen.go.
	awaited  time.Time // until then the previous process may have the address; zero for other sockets; never changed
	failed   error     // why nothing is accepted any more; nil: clients are accepted
	refused  error     // why the address could not be opened again last time
	failures int       // times in a row that the address failed before this socket
	served   time.Time // since when it is served
}

// NetListener returns what bind has opened.
func (s *socket) NetListener() net.Listener { return s.Listener }

// bindFor listens on an address for a protocol; a nil kind is the admin page. what names the socket's user in the
// error, which wraps ErrListen.
func bindFor(kind *extend.Protocol, what, address string, perm permission) (*socket, error) {
	if kind == nil || kind.Listen == nil {
		return bind(what, address, perm)
	}
	l, err := kind.Listen(context.Background(), address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w on %s: %s%w", what, ErrListen, address, adviceToBind(address, kind.Config.Datagrams, err), err)
	}
	return &socket{Listener: l}, nil
}

// bind listens on an address for TCP or on a unix socket, see bindFor.
func bind(what, address string, perm permission) (*socket, error) {
	listen := net.ListenConfig{Control: perm.restrict}
	l, err := netaddr.Listen(context.Background(), &listen, address)
	if errors.Is(err, syscall.EADDRINUSE) && removeStaleSocket(address) {
		l, err = netaddr.Listen(context.Background(), &listen, address)
	}
	if err == nil {
		return &socket{Listener: l, unlink: true}, nil
	}
	return nil, fmt.Errorf("%s: %w on %s: %s%w", what, ErrListen, address, adviceToBind(address, false, err), err)
}

// adviceToBind explains an error of binding an address and how to fix it; "" if the error explains
// itself.
func adviceToBind(address string, datagrams bool, err error) string {
	list := "ss -ltnp"
	if datagrams {
		list = "ss -lunp"
	}
	for cause, advice := range map[syscall.Errno]string{
		syscall.EADDRINUSE:    `the address is in use by another program; stop that one ("` + list + `" names it) or choose another address: `,
		syscall.EACCES:        "no permission; ports below 1024 need CAP_NET_BIND_SERVICE (AmbientCapabilities of a systemd unit, or setcap), a unix socket a writable folder: ",
		syscall.ENOENT:        "its folder does not exist; create it first: ",
		syscall.ENOTDIR:       "a part of the path is a file, not a folder: ",
		syscall.EROFS:         "its folder can only be read; choose one in /run: ",
		syscall.EADDRNOTAVAIL: "this machine has no such address: ",
		syscall.EMFILE:        "no file descriptors are left; raise the limit of open files (ulimit -n, LimitNOFILE): ",
		syscall.ENFILE:        "the whole system is out of files; raise fs.file-max: ",
	} {
		if !errors.Is(err, cause) {
			continue
		}
		if path, unix := strings.CutPrefix(address, "unix:"); unix && cause == syscall.EADDRINUSE {
			return adviceOnSocket(path)
		}
		return advice
	}
	return ""
}

// adviceOnSocket is adviceToBind for a path that exists.
func adviceOnSocket(path string) string {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return "something that is no socket is there; move it away or choose another path: "
	}
	return `the socket is in use by another program; stop that one ("ss -lxp" names it) or choose another path: `
}

// removeStaleSocket removes a unix socket without a listener, which a killed process leaves behind.
func removeStaleSocket(address string) bool {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return false
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return false
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED) && os.Remove(path) == nil
}

// duplicate returns a second listener on the same socket, so that another proxy can take over: connections that arrive
// in between wait in the backlog that both share.
func (s *socket) duplicate() (*socket, error) {
	if shared, ok := s.Listener.(extend.Handover); ok {
		l, err := shared.Duplicate()
		if err != nil {
			return nil, err
		}
		return &socket{Listener: l}, nil
	}
	f, err := fileOf(s.Listener)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return &socket{Listener: l}, nil
}

// handOver makes to the owner of a unix socket's path, so that closing s does not remove it.
func (s *socket) handOver(to *socket) {
	s.own(false)
	to.own(true)
}

// own sets whether closing the socket removes the file of a Unix socket.
func (s *socket) own(unlink bool) {
	s.unlink = unlink
	if u, ok := s.Listener.(unlinker); ok {
		u.SetUnlinkOnClose(unlink)
	}
}

// retire closes the socket. Its accept loop then ends without an error.
func (s *socket) retire() {
	s.retired.Store(true)
	_ = s.Close()
}
