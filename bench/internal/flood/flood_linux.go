package flood

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is how the clients of a flood vanish.
type Kind int

// The kinds.
const (
	Reset Kind = iota // by a reset
	Leave             // by ending both directions, without having sent a byte
)

// Config describes a flood.
type Config struct {
	Target netip.AddrPort // of loopback
	Kind   Kind
	Rate   int           // connections a second, at most MaxRate
	For    time.Duration // at most MaxLength
}

// The limits of a flood: what one thread of a small machine can make, and as many connections as the ports of a few addresses allow.
const (
	MaxRate   = 50_000
	MaxLength = 30 * time.Second
)

// ErrConfig is wrapped by the error of a Config beyond the limits.
var ErrConfig = errors.New("flood: invalid configuration")

// sources is how many addresses of loopback the connections come from: connections that both sides have ended keep their ports for a
// minute.
const sources = 64

// pause is the time between two batches of connections.
const pause = time.Millisecond

// Run floods until the time is over, or ctx ends, and returns how many connections it has begun. It takes a
// thread for itself. It does not wait for the end of handshakes: where the queue of the target is full, connections vanish before they are
// established.
func Run(ctx context.Context, cfg Config) (begun int, err error) {
	if !cfg.Target.Addr().Is4() || !cfg.Target.Addr().IsLoopback() {
		return 0, fmt.Errorf("%w: %v is no IPv4 address of loopback", ErrConfig, cfg.Target)
	}
	if cfg.Rate <= 0 || cfg.Rate > MaxRate || cfg.For <= 0 || cfg.For > MaxLength {
		return 0, fmt.Errorf("%w: %d connections a second for %v; at most %d for %v", ErrConfig, cfg.Rate, cfg.For, MaxRate, MaxLength)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	for ctx.Err() == nil {
		took := time.Since(began)
		if took >= cfg.For {
			return begun, nil
		}
		for due := int(took.Seconds() * float64(cfg.Rate)); begun < due; begun++ {
			if err := vanish(cfg, begun%sources); err != nil {
				return begun, err
			}
		}
		time.Sleep(pause)
	}
	return begun, nil
}

// vanish begins a connection and leaves it.
func vanish(cfg Config, source int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("flood: socket: %w", err)
	}
	defer unix.Close(fd)
	if cfg.Kind == Reset {
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fmt.Errorf("flood: SO_LINGER: %w", err)
		}
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 9, byte(1 + source)}}); err != nil {
		return fmt.Errorf("flood: bind: %w", err)
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: cfg.Target.Addr().As4(), Port: int(cfg.Target.Port())})
	switch {
	case err == nil, errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EADDRNOTAVAIL):
		return nil // the last: all ports of this address wait for late packets
	}
	return fmt.Errorf("flood: connect: %w", err)
}
