package gateway

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// Socket is a listening socket on its way from one process to the next. TCP and Unix sockets can be handed over: clients
// that connect meanwhile wait in the socket's queue, and none is refused. UDP sockets cannot, because the datagrams of
// running sessions would reach the wrong process. Other Sockets are links by which processes of the gateway ask each other.
type Socket struct {
	Listen string   // the address in the configuration; of a link, a name that is no address
	File   *os.File // a duplicate of the socket; whoever has the Socket closes it
}

// Sockets returns duplicates of the gateway's sockets, also the admin page's, for Options.Sockets of the process that
// takes over. Both accept clients then, until Leave. Sockets whose port the system has chosen (port 0), and those that
// have failed, are left out.
func (g *Gateway) Sockets() (list []Socket, err error) {
	if !g.lockRunning() {
		return nil, ErrClosed
	}
	defer g.reloading.Unlock()
	defer func() {
		if err != nil {
			closeSockets(list)
			list = nil
		}
	}()
	add := func(what, listen string, sock *socket) error {
		if anyPort(listen) || g.failure(sock) != nil {
			return nil //nolint:nilerr // a socket that has failed stays here
		}
		f, err := fileOf(sock.Listener)
		if err != nil {
			return fmt.Errorf("%s: hand over %s: %w", what, listen, err)
		}
		list = append(list, Socket{listen, f})
		return nil
	}
	for _, s := range g.services {
		if s.datagrams() {
			continue
		}
		if err = add(fmt.Sprintf("listener %q", s.cfg.Name), s.cfg.Listen, s.socket); err != nil {
			return list, err
		}
	}
	if g.admin != nil {
		if err = add("admin", g.cfg.Admin, g.admin.socket); err != nil {
			return list, err
		}
	}
	links, err := g.links()
	return append(list, links...), err
}

// Leave stops accepting, once another process serves the Sockets: Unix sockets are not removed, and the sessions of UDP
// listeners end, so that the other process gets their addresses. Other sessions continue, nothing can be reloaded any more,
// and the gateway is to be drained soon. If it is being drained already, Leave does nothing and returns ErrClosed: the drain
// removes Unix sockets, and the other process must not go on.
func (g *Gateway) Leave() error {
	if !g.lockRunning() {
		return ErrClosed
	}
	defer g.reloading.Unlock()
	g.mu.Lock()
	g.left = true
	g.noteLeft()
	g.mu.Unlock()
	g.handOverLaterChanges()
	g.tasks.Go(g.vacate)
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, s := range g.services {
		s.socket.own(false)
		s.socket.retire()
		if s.datagrams() {
			_ = s.proxy.Drain(now)
		}
	}
	if g.admin != nil {
		g.admin.socket.own(false)
		g.admin.socket.retire()
		g.admin.http.SetKeepAlivesEnabled(false) // a probe or scraper with a connection would get this process's answers
	}
	return nil
}

// noteLeft records that the gateway stops accepting. mu is held.
func (g *Gateway) noteLeft() {
	if g.leftAt.IsZero() {
		g.leftAt = time.Now()
	}
}

// ownPaths makes this process the one that removes the files of its Unix sockets. It also removes the files of those
// sockets of the previous process that this one does not have, because the previous one removes none.
func (g *Gateway) ownPaths() {
	for _, path := range g.leftover {
		_ = os.Remove(path)
	}
	for _, s := range g.services {
		s.socket.own(true)
	}
	if g.admin != nil {
		g.admin.socket.own(true)
	}
}

// inherited are the sockets that New has got and not used yet, by the address in the configuration.
type inherited map[string]*os.File

// newInherited takes the sockets over.
func newInherited(list []Socket) inherited {
	if list == nil {
		return nil
	}
	in := inherited{}
	for _, s := range list {
		if in[s.Listen] != nil {
			_ = in[s.Listen].Close()
		}
		in[s.Listen] = s.File
	}
	return in
}

// take returns the socket for an address, nil if there is none.
func (in inherited) take(what, listen string) (*socket, error) {
	f := in[listen]
	if f == nil {
		return nil, nil //nolint:nilnil // as documented
	}
	delete(in, listen)
	l, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("%s: %w on %s: take over the socket of the previous process: %w", what, ErrListen, listen, err)
	}
	return &socket{Listener: l}, nil
}

// close closes the sockets that the configuration does not need any more, and returns the paths of the Unix sockets among them.
func (in inherited) close() (paths []string) {
	for listen, f := range in {
		_ = f.Close()
		delete(in, listen)
		if path, ok := strings.CutPrefix(listen, "unix:"); ok {
			paths = append(paths, path)
		}
	}
	return paths
}

func closeSockets(list []Socket) {
	for _, s := range list {
		_ = s.File.Close()
	}
}

// awaited is the listener of a UDP socket whose address the previous process still has.
type awaited struct{ address string }

// Accept, Close and Addr implement net.Listener.
func (a awaited) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (a awaited) Close() error              { return nil }
func (a awaited) Addr() net.Addr            { return udpAddress(a.address) }

// udpAddress is an address as the configuration has it.
type udpAddress string

// Network and String implement net.Addr.
func (a udpAddress) Network() string { return "udp" }
func (a udpAddress) String() string  { return string(a) }

const (
	// awaitPause is how often an awaited address is tried: clients of it are not served meanwhile, and a try costs little.
	awaitPause = 100 * time.Millisecond
	// awaitGrace is how long the previous process may take to end after its drain_timeout.
	awaitGrace = 15 * time.Second
)

// await returns a socket in place of one that could not be bound because of err, if the previous process may still have
// that UDP address, else nil. It is opened again like one that has failed.
func (g *Gateway) await(p *plan, listen string, err error) *socket {
	until := time.Now().Add(p.New.DrainTimeout + awaitGrace)
	if g.inherited == nil { // this process runs
		until = g.awaitedUntil(listen)
	}
	if !time.Now().Before(until) {
		return nil
	}
	return &socket{Listener: awaited{listen}, failed: err, awaited: until}
}

// awaitedUntil returns until when an address is awaited; the zero time if it is not.
func (g *Gateway) awaitedUntil(listen string) (until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.services {
		for _, sock := range s.sockets() {
			if l, ok := sock.Listener.(awaited); ok && l.address == listen {
				until = sock.awaited
			}
		}
	}
	return until
}

// awaits reports whether a socket waits only for the previous process. After that time another program has the address.
func (s *socket) awaits() bool { return time.Now().Before(s.awaited) }

// anyPort reports whether the system chooses the port of an address.
func anyPort(listen string) bool {
	return strings.HasSuffix(listen, ":0") && !strings.HasPrefix(listen, "unix:")
}
