package tunnel

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/headpond/headpond/mux"
)

// Defaults, used where a field is zero.
const (
	// DefaultMaxStreams bounds the streams that one peer may have open: with a
	// small buffer for each direction and two goroutines 20 MB at the side that dials.
	DefaultMaxStreams = 1024
	// DefaultMaxSessions bounds the sessions of a server, of all peers.
	DefaultMaxSessions = 256
	// minPeerSessions is the least default of a peer's session limit: one session, and one that replaces it.
	minPeerSessions = 2
	// DefaultKeepAlive is how long a socket may be silent before it is replaced: longer than a
	// network or a busy machine needs to recover, short enough for users.
	DefaultKeepAlive = 10 * time.Second
	// DefaultResumeWindow is how long a session without a socket is kept.
	DefaultResumeWindow = 2 * time.Minute
)

const (
	// maxStreamsLimit is the number of streams whose windows fit into a session: mux's
	// SessionWindow (1 GiB at most) over the window of a stream.
	maxStreamsLimit = 1 << 13
	streamWindow    = 64 << 10
	minPSK          = 16
	maxName         = 255
)

// Config has the settings that both ends of a tunnel share.
type Config struct {
	// Name identifies this side to the other one; Server.Open names peers by it. A server accepts
	// it if the peer's certificate has it, as common name or as DNS name, or if there is no
	// certificate (a peer with the PSK may use any name except those with their own keys, see
	// Peer). Empty: the name in the certificate, or the name of the key's owner.
	Name string
	// PSK is a key that both sides must have, at least 16 bytes; of a Client, the server's
	// PSK or one of its Peer.Keys. It does not encrypt; use TLS for that.
	PSK []byte
	// Policy decides which targets the other side may connect to.
	Policy Policy
	// MaxStreams bounds the streams one peer may have open to this side, in all of
	// its sessions; 0 = DefaultMaxStreams, at most 8192. More wait for their turn, for Policy.Timeout at most, and are
	// then refused with ErrBusy.
	MaxStreams int
	// ResumeWindow is how long a session that has lost its socket waits for another one; the smaller value of both
	// sides applies. 0 = DefaultResumeWindow.
	ResumeWindow time.Duration
	// KeepAlive is how long a socket may bring nothing, although the other side is asked
	// for a sign of life, until it is given up and replaced; 0 = DefaultKeepAlive. It also
	// bounds how long a handshake may take, which has three seconds at least.
	KeepAlive time.Duration
	// Logger gets events of sessions and refusals; nil = slog.Default().
	Logger *slog.Logger
}

// verify reports every problem of c, joined; each wraps ErrConfig.
func (c *Config) verify() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if len(c.Name) > maxName {
		bad("Name has %d bytes, want at most %d", len(c.Name), maxName)
	}
	if len(c.PSK) > 0 && len(c.PSK) < minPSK {
		bad("PSK has %d bytes, want at least %d", len(c.PSK), minPSK)
	}
	if c.MaxStreams < 0 || c.MaxStreams > maxStreamsLimit {
		bad("MaxStreams is %d, want 0 (default) to %d", c.MaxStreams, maxStreamsLimit)
	}
	if c.Policy.Timeout < 0 {
		bad("Policy.Timeout %v is negative", c.Policy.Timeout)
	}
	if k := c.KeepAlive; k != 0 && (k < 100*time.Millisecond || k > time.Hour) {
		bad("KeepAlive is %v, want 100ms to 1h", k)
	}
	if w := c.ResumeWindow; w != 0 && (w < time.Millisecond || w > 24*time.Hour) {
		bad("ResumeWindow is %v, want 1ms to 24h", w)
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.MaxStreams = cmp.Or(c.MaxStreams, DefaultMaxStreams)
	c.ResumeWindow = cmp.Or(c.ResumeWindow, DefaultResumeWindow)
	c.KeepAlive = cmp.Or(c.KeepAlive, DefaultKeepAlive)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// mux is the configuration of a session. Its keep-alive asks after one to two thirds of
// KeepAlive, and waits for the last third.
func (c *Config) mux(tunnel string, resume *mux.Resume) mux.Config {
	return mux.Config{
		Name: c.Name, PSK: c.PSK, Resume: resume, Logger: c.Logger.With("tunnel", tunnel),
		KeepAlive: c.KeepAlive / 3, KeepAliveTimeout: c.KeepAlive / 3, HandshakeTimeout: max(c.KeepAlive, minHandshake),
		MaxChannels: c.MaxStreams, AcceptBacklog: c.MaxStreams,
		ChannelWindow: streamWindow, // SessionWindow follows from that, and from the other side's limits
	}
}
