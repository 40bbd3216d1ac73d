package mux

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/headpond/headpond/mux/frame"
)

// Config is everything about one side of a session. The zero Config works.
type Config struct {
	// Name identifies this side in the other side's logs. At most 255 bytes.
	Name string
	// MaxMessage bounds a message, sent or received, in bytes. Messages larger than their
	// channels' windows that are on their way at once share as much at the receiver, in
	// the order in which they begin. Default 64 MiB, at most 1 GiB.
	MaxMessage int
	// MaxFrame bounds the bytes sent at once for one channel while other channels have data to
	// send: a small message waits for one frame of each of them. Default 32 KiB; 1 KiB to 1 MiB.
	MaxFrame int
	// MaxChannels bounds the channels the other side may have open. The other side
	// knows it, and its Open waits. Default 1024.
	MaxChannels int
	// AcceptBacklog bounds the channels opened by the other side and not yet
	// accepted, for messages and streams each: its Open waits for Accept here. (A peer
	// without the feature OPENS has them refused.) Default 128, at most 1048576.
	AcceptBacklog int
	// ChannelWindow is how much a channel may receive ahead of its reader at
	// first, in bytes, counting 64 for each frame. It grows to MaxChannelWindow
	// when the reader keeps up with it, as long as the windows of all channels
	// together take no more than half of SessionWindow. Default 64 KiB; at least 4 KiB.
	ChannelWindow int
	// MaxChannelWindow bounds ChannelWindow's growth, in bytes. Default 16 MiB.
	MaxChannelWindow int
	// SessionWindow bounds the windows of all channels together, in bytes, including unread data of
	// ended channels and of messages larger than their windows. Together with MaxMessage (large
	// messages being assembled for waiting receivers, beyond their channels' windows) it bounds the
	// memory that the other side can make this side use. A channel of the other side whose window
	// does not fit is refused; a channel of this side waits. Default 128 MiB, or twice
	// ChannelWindow for each of MaxChannels if that is more, and more as this side opens channels,
	// at most 1 GiB; so raising MaxChannels at one side is enough. At least ChannelWindow.
	SessionWindow int
	// KeepAlive is the silence after which a ping is sent. Default 15 s; negative:
	// never.
	KeepAlive time.Duration
	// KeepAliveTimeout is how long the answer may take. Default 15 s.
	KeepAliveTimeout time.Duration
	// HandshakeTimeout bounds the handshake as a whole. Default 10 s.
	HandshakeTimeout time.Duration
	// CloseTimeout bounds the time Close takes to write accepted messages. Default 1 s.
	CloseTimeout time.Duration
	// PSK is a key both sides must know, at least 16 bytes; each proves it to the
	// other without sending it. It does not encrypt: use TLS for that.
	PSK []byte
	// Token is presented to the other side's Authorize. At most 512 bytes, sent
	// as it is: use it with TLS.
	Token []byte
	// Authorize, if set, decides whether to talk to the other side; its error ends the handshake
	// (the other side learns only that it was denied, unless the error wraps a [*Refusal]), and a
	// panic is raised in the caller of Client or Server. With a PSK it is asked after the proof.
	Authorize func(ctx context.Context, p Peer) error
	// PSKs, if set, is called by a server instead of using PSK. It returns the keys of the client p
	// (its Name and Token are not proved yet; TLS is, if there is any); the client must know one of
	// them. Each has 16 bytes or more. No keys and no error mean that this client needs none. On an
	// error the client is denied as if its key were wrong. Peer.Key says which key the client used.
	PSKs func(p Peer) ([][]byte, error)
	// Resume, if set, makes sessions outlive their connections where the other side
	// can do that too; see [Session.Resumable].
	Resume *Resume
	// Logger, if set, gets why a session ended, which no caller may have seen.
	Logger *slog.Logger

	elastic bool // SessionWindow was not set
}

// Peer describes the other side, from the handshake. Name and Token are claims; TLS and the PSK are
// proofs.
type Peer struct {
	Name     string
	Token    []byte
	Instance [16]byte // random, the same as long as the process lives
	Addr     net.Addr
	TLS      *tls.ConnectionState // nil without TLS
	PSK      bool                 // it proved that it knows the key
	Key      int                  // with Config.PSKs: which of them, from 0
	Resumes  bool                 // to Authorize only: it resumes a session
}

// String is for logs.
func (p Peer) String() string { return fmt.Sprintf("%q at %v", p.Name, p.Addr) }

const (
	maxMessageLimit = 1 << 30 // a size on the wire has 32 bits, and an int may have no more
	// maxSessionWindow is the largest value whose double fits in 32 bits.
	maxSessionWindow = 1 << 30
	minWindow        = 4 << 10
	minPSK           = 16 // shorter ones can be guessed from one handshake
)

func orInt(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

func orTime(v *time.Duration, d time.Duration) {
	if *v == 0 {
		*v = d
	}
}

// withDefaults returns a copy with every zero replaced.
func (c Config) withDefaults() Config {
	orInt(&c.MaxMessage, 64<<20)
	orInt(&c.MaxFrame, 32<<10)
	orInt(&c.MaxChannels, 1024)
	orInt(&c.AcceptBacklog, 128)
	orInt(&c.ChannelWindow, 64<<10)
	orInt(&c.MaxChannelWindow, max(16<<20, c.ChannelWindow))
	if c.SessionWindow == 0 {
		c.elastic = true
		windows := min(2*uint64(max(c.MaxChannels, 0))*uint64(max(c.ChannelWindow, 0)), maxSessionWindow)
		c.SessionWindow = max(128<<20, c.ChannelWindow, int(windows))
	}
	orTime(&c.KeepAlive, 15*time.Second)
	orTime(&c.KeepAliveTimeout, 15*time.Second)
	orTime(&c.HandshakeTimeout, 10*time.Second)
	orTime(&c.CloseTimeout, time.Second)
	return c
}

// Verify returns an error that wraps ErrConfig if the Config is invalid. It changes nothing.
func (c Config) Verify() error {
	c = c.withDefaults()
	bad := func(field string, v any, want string) error {
		return fmt.Errorf("%w: %s is %v, want %s", ErrConfig, field, v, want)
	}
	switch {
	case len(c.Name) > frame.MaxHelloName:
		return bad("the length of Name", len(c.Name), "at most 255 bytes")
	case len(c.Token) > frame.MaxHelloToken:
		return bad("the length of Token", len(c.Token), "at most 512 bytes")
	case len(c.PSK) > 0 && len(c.PSK) < minPSK:
		return bad("the length of PSK", len(c.PSK), "at least 16 bytes")
	case c.MaxMessage < 1 || c.MaxMessage > maxMessageLimit:
		return bad("MaxMessage", c.MaxMessage, "1 to 1 GiB")
	case c.MaxFrame < frame.MinMaxFrame || c.MaxFrame > frame.MaxData:
		return bad("MaxFrame", c.MaxFrame, "1 KiB to 1 MiB")
	case c.MaxChannels < 0 || c.MaxChannels > 1<<20:
		return bad("MaxChannels", c.MaxChannels, "0 to 1048576")
	case c.AcceptBacklog < 1 || c.AcceptBacklog > 1<<20:
		return bad("AcceptBacklog", c.AcceptBacklog, "1 to 1048576")
	case c.ChannelWindow < minWindow || c.ChannelWindow > 1<<30:
		return bad("ChannelWindow", c.ChannelWindow, "4 KiB to 1 GiB")
	case c.MaxChannelWindow < c.ChannelWindow || c.MaxChannelWindow > 1<<30:
		return bad("MaxChannelWindow", c.MaxChannelWindow, "ChannelWindow to 1 GiB")
	case c.SessionWindow < c.ChannelWindow || c.SessionWindow > maxSessionWindow:
		return bad("SessionWindow", c.SessionWindow, "ChannelWindow to 1 GiB")
	case c.KeepAliveTimeout < 0 || c.HandshakeTimeout < 0 || c.CloseTimeout < 0:
		return bad("a timeout", "negative", "a positive one")
	case c.Resume != nil:
		return c.Resume.verify()
	}
	return nil
}
