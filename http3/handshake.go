package http3

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/headpond/headpond/listener"
)

const (
	// While there are busyHandshakes or more handshakes, new clients must first prove that they own
	// their address (Retry, RFC 9000, section 8.1.2), which costs a round trip. maxHandshakes
	// bounds the concurrent handshakes; each takes some 50 KiB, and a signature.
	busyHandshakes = 64
	maxHandshakes  = 1024
	// maxSourceHandshakes bounds those of one source with a proven address, so that one client
	// cannot use up maxHandshakes.
	maxSourceHandshakes = maxHandshakes / 8
)

var (
	errBusy   = errors.New("http3: too many handshakes are under way")
	errSource = errors.New("http3: too many handshakes of this address are under way")
	errNobody = errors.New("http3: nobody accepts clients any more")
)

// handshakes counts the handshakes in progress. Clients without a proven address count for no
// source, because the address may be forged.
type handshakes struct {
	mu      sync.Mutex // held for a few instructions
	all     int
	sources map[netip.Prefix]int
}

// handshake is a counted handshake. It counts until its connection is accepted or has ended.
type handshake struct {
	of   *handshakes
	from netip.Prefix // the source; zero = the address is not proven
	to   *Listener    // the Listener whose settings it uses
	once sync.Once
}

type handshakeKey struct{}

// sourceOf returns an IPv4 address, or the /64 network of an IPv6 address, because one client can
// use all addresses of a /64.
func sourceOf(from net.Addr) netip.Prefix {
	a, ok := from.(*net.UDPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, bits := a.AddrPort().Addr().Unmap(), 32
	if ip.Is6() {
		bits = 64
	}
	source, _ := ip.WithZone("").Prefix(bits)
	return source
}

// begin counts a handshake, and returns the number of other handshakes of its source.
func (s *handshakes) begin(h *handshake) (pending int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxHandshakes {
		return 0, errBusy
	}
	if h.from.IsValid() {
		if pending = s.sources[h.from]; pending >= maxSourceHandshakes {
			return 0, errSource
		}
		if s.sources == nil {
			s.sources = map[netip.Prefix]int{}
		}
		s.sources[h.from]++
	}
	s.all++
	return pending, nil
}

// uncount uncounts the handshake. It reports whether the handshake was counted until now.
func (h *handshake) uncount() (now bool) {
	h.once.Do(func() {
		now = true
		s := h.of
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if !h.from.IsValid() {
			return
		}
		if s.sources[h.from]--; s.sources[h.from] == 0 {
			delete(s.sources, h.from)
		}
	})
	return now
}

// failed uncounts a handshake whose connection has ended, and reports TLS errors. It does not
// report other errors: they are those of clients that have disconnected, with addresses that may be
// forged.
func (h *handshake) failed(err error, client net.Addr) {
	if !h.uncount() {
		return
	}
	if e, ok := errors.AsType[*quic.TransportError](err); ok && e.ErrorCode.IsCryptoError() && h.to != nil {
		h.to.settings.Report(listener.ReasonTLS, slog.LevelDebug, "TLS handshake error", "client", client.String(), "error", err)
	}
}

func (s *handshakes) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all >= busyHandshakes
}

// busy implements quic.Transport.VerifySourceAddress.
func (p *port) busy(net.Addr) bool { return p.shaking.busy() }

// sameFlight is how long further packets of a refused client belong to the refused attempt. The
// first flight of a client has two or more packets, and the attempt is counted once.
const sameFlight = 100 * time.Millisecond

// refusal is the last client that was refused before its handshake.
type refusal struct {
	client string
	at     time.Time
	err    error
}

// newHandshake implements quic.Transport.ConnContext: it counts the handshake of a new client, or refuses
// the client before anything is allocated for it. It must not wait, because the packets of all
// clients wait for it. There are no concurrent calls.
func (p *port) newHandshake(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	client := info.RemoteAddr.String()
	if last := &p.refused; last.client == client && time.Since(last.at) < sameFlight {
		return nil, last.err
	}
	h := &handshake{of: &p.shaking}
	if info.AddrVerified {
		h.from = sourceOf(info.RemoteAddr)
	}
	if err := p.admit(h, info); err != nil {
		p.refused = refusal{client, time.Now(), err}
		return nil, err
	}
	context.AfterFunc(ctx, func() { h.failed(context.Cause(ctx), info.RemoteAddr) })
	return context.WithValue(ctx, handshakeKey{}, h), nil
}

// admit counts a handshake, unless the client is refused.
func (p *port) admit(h *handshake, info *quic.ClientInfo) error {
	s := p.settings()
	pending, err := p.shaking.begin(h)
	switch {
	case s == nil: // the client is checked when it is accepted
		return err
	case err != nil:
		s.Report(listener.ReasonRejected, slog.LevelWarn, "handshake refused", "client", info.RemoteAddr.String(), "error", err)
		return err
	}
	if err = s.Admit(info.RemoteAddr, pending); err != nil {
		_ = h.uncount()
	}
	return err
}
