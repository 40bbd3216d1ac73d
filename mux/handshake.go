package mux

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/headpond/headpond/mux/frame"
)

// instance identifies this process, also among processes that had its address before.
var instance = func() (id [16]byte) {
	rand.Read(id[:])
	return id
}()

// handshake is the state of one.
type handshake struct {
	conn         net.Conn
	cfg          *Config
	client       bool
	mine, theirs frame.Hello
	sentMagic    bool     // the server's magic is sent
	keys         [][]byte // of which the other side must know one
	noKeys       error    // why there is none that is right
	psk          []byte   // the one it knows
	transcript   []byte   // both Hello frames, the client's first
	peer         Peer
	session      ID
	ticket       *ticket // resumption was agreed
}

// shakeHands performs the handshake. On an error it has sent the other side the reason.
func shakeHands(ctx context.Context, conn net.Conn, cfg Config, client bool) (*handshake, error) {
	h := &handshake{conn: conn, cfg: &cfg, client: client}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.HandshakeTimeout, os.ErrDeadlineExceeded)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err := h.run(ctx)
	if !stop() && ctx.Err() != nil && !errors.Is(err, ErrResumed) {
		return nil, fmt.Errorf("%w: %w", ErrHandshake, context.Cause(ctx))
	}
	var bye *GoAwayError
	if err != nil && !errors.Is(err, ErrResumed) && !errors.Is(err, ErrDenied) && !errors.As(err, &bye) {
		err = fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	return h, err
}

func (h *handshake) run(ctx context.Context) error {
	if t, ok := h.conn.(*tls.Conn); ok {
		if err := t.HandshakeContext(ctx); err != nil {
			return err
		}
		state := t.ConnectionState()
		h.peer.TLS = &state
	}
	h.peer.Addr = h.conn.RemoteAddr()
	h.mine = frame.Hello{
		MinVersion: frame.Version, MaxVersion: frame.Version,
		MaxFrame: offeredFrame(*h.cfg), MaxChannels: uint32(h.cfg.MaxChannels),
		ChannelWindow: uint32(h.cfg.ChannelWindow), SessionWindow: offeredSession(*h.cfg),
		Instance: instance, Name: []byte(h.cfg.Name), Token: h.cfg.Token,
	}
	rand.Read(h.mine.Nonce[:])
	h.mine.KeepAlive = uint32(max(0, h.cfg.KeepAlive/time.Millisecond))
	h.mine.Offered = frame.FeatureOpens
	if len(h.cfg.PSK) > 0 {
		h.useKeys([][]byte{h.cfg.PSK})
	}
	if r := h.cfg.Resume; r != nil {
		h.mine.Offered |= frame.FeatureResume
		h.mine.Replay = uint32(r.buffer())
	}
	if h.client {
		return h.asClient(ctx)
	}
	return h.asServer(ctx)
}

// useKeys makes the handshake one with proofs.
func (h *handshake) useKeys(keys [][]byte) {
	h.keys, h.psk = keys, keys[0]
	h.mine.Offered |= frame.FeaturePSK
	h.mine.Required |= frame.FeaturePSK
}

// findKeys asks the application for the keys of the client that has said hello.
func (h *handshake) findKeys() {
	if h.cfg.PSKs == nil {
		return
	}
	h.keys, h.psk = nil, nil
	h.mine.Offered &^= frame.FeaturePSK
	h.mine.Required &^= frame.FeaturePSK
	keys, err := h.cfg.PSKs(h.peer)
	if err == nil && slices.ContainsFunc(keys, func(k []byte) bool { return len(k) < minPSK }) {
		err = fmt.Errorf("%w: a key that PSKs returned is shorter than %d bytes", ErrConfig, minPSK)
	}
	if err != nil { // the answer does not reveal it to a client without a key
		unknown := make([]byte, 2*minPSK)
		rand.Read(unknown)
		keys, h.noKeys = [][]byte{unknown}, err
	}
	if len(keys) > 0 {
		h.useKeys(keys)
	}
}

func (h *handshake) asClient(ctx context.Context) error {
	hello := h.mine.Append([]byte(frame.Magic))
	if _, err := h.conn.Write(hello); err != nil {
		return err
	}
	h.transcript = append(h.transcript, hello[len(frame.Magic):]...)
	if err := h.readHello(); err != nil {
		return err
	}
	if h.theirs.Session == [16]byte{} { // as in a client's
		return h.deny(frame.CodeProtocol, protocolError("the other side is a client, too, or repeats what it gets"))
	}
	if err := h.agree(); err != nil {
		return err
	}
	h.session = h.theirs.Session
	if h.theirs.Offered&frame.FeaturePSK != 0 {
		if err := h.prove(); err != nil {
			return err
		}
		if err := h.verify(); err != nil {
			return err
		}
	}
	if h.theirs.Offered&frame.FeatureResume != 0 {
		if err := h.readTicket(); err != nil {
			return err
		}
	}
	return h.authorize(ctx)
}

func (h *handshake) asServer(ctx context.Context) error {
	if err := h.readMagic(); err != nil {
		return err
	}
	head, body, err := h.readFrame(frame.TypeHello, frame.TypeResume)
	if err != nil {
		return err
	}
	if head.Type == frame.TypeResume {
		return h.resume(ctx, head, body)
	}
	if err := h.hello(head, body); err != nil {
		return err
	}
	h.findKeys()
	if err := h.agree(); err != nil {
		return err
	}
	h.session = NewID()
	h.mine.Session = h.session
	if h.mine.Offered &= h.theirs.Offered; h.mine.Offered&frame.FeatureResume == 0 {
		h.mine.Replay = 0
	}
	psk := h.mine.Offered&frame.FeaturePSK != 0
	if !psk { // with a key, its proof comes first
		if err := h.authorize(ctx); err != nil {
			return err
		}
	}
	hello := h.mine.Append([]byte(frame.Magic))
	h.sentMagic = true
	h.transcript = append(h.transcript, hello[len(frame.Magic):]...)
	if !psk {
		_, err := h.conn.Write(h.giveTicket(hello))
		return err
	}
	if _, err := h.conn.Write(hello); err != nil {
		return err
	}
	if err := h.verify(); err != nil {
		return err
	}
	if err := h.authorize(ctx); err != nil {
		return err
	}
	f := frame.Auth{Proof: h.proof(h.client)}
	_, err = h.conn.Write(h.giveTicket(f.Append(nil)))
	return err
}

// giveTicket ends a server's handshake with a Ticket, if resumption was agreed.
func (h *handshake) giveTicket(dst []byte) []byte {
	if h.mine.Offered&frame.FeatureResume == 0 {
		return dst
	}
	h.ticket = &ticket{instance: instance, window: h.cfg.Resume.window()}
	rand.Read(h.ticket.token[:])
	f := frame.Ticket{Token: h.ticket.token, Window: uint32(h.ticket.window / time.Millisecond)}
	return f.Append(dst)
}

func (h *handshake) readTicket() error {
	head, body, err := h.readFrame(frame.TypeTicket)
	if err != nil {
		return err
	}
	var f frame.Ticket
	if err := f.Decode(head, body); err != nil {
		return asProtocol(err)
	}
	h.ticket = &ticket{token: f.Token, instance: h.theirs.Instance, window: time.Duration(f.Window) * time.Millisecond}
	return nil
}

// readMagic reads the other side's first bytes.
func (h *handshake) readMagic() error {
	magic := make([]byte, len(frame.Magic))
	if _, err := io.ReadFull(h.conn, magic); err != nil {
		return fmt.Errorf("no handshake from the other side: %w", err)
	}
	if string(magic) != frame.Magic {
		return protocolError("the other side began with %q: it speaks another protocol", magic)
	}
	return nil
}

// readHello reads the server's magic and Hello.
func (h *handshake) readHello() error {
	if err := h.readMagic(); err != nil {
		return err
	}
	head, body, err := h.readFrame(frame.TypeHello)
	if err != nil {
		return err
	}
	return h.hello(head, body)
}

// hello takes the other side's Hello.
func (h *handshake) hello(head frame.Header, body []byte) error {
	if err := h.theirs.Decode(head, body); err != nil {
		return h.deny(frame.CodeProtocol, asProtocol(err))
	}
	h.transcript = append(head.Append(h.transcript), body...)
	h.peer.Name, h.peer.Instance = string(h.theirs.Name), h.theirs.Instance
	h.peer.Token = append([]byte(nil), h.theirs.Token...)
	return nil
}

// readFrame reads one frame, which must be of a type in want, or a GoAway, which
// is returned as an error.
func (h *handshake) readFrame(want ...frame.Type) (head frame.Header, body []byte, err error) {
	var buf [frame.HeaderSize]byte
	if _, err := io.ReadFull(h.conn, buf[:]); err != nil {
		return head, nil, err
	}
	if head, err = frame.ParseHeader(buf[:]); err != nil {
		return head, nil, asProtocol(err)
	}
	wanted := slices.Contains(want, head.Type)
	if !wanted && head.Type != frame.TypeGoAway {
		return head, nil, protocolError("%v in the handshake where %v belongs", head.Type, want)
	}
	body = make([]byte, head.Length) // at most MaxControl
	if _, err = io.ReadFull(h.conn, body); err != nil || wanted {
		return head, body, err
	}
	var bye frame.GoAway
	if err := bye.Decode(head, body); err != nil {
		return head, nil, asProtocol(err)
	}
	return head, nil, &GoAwayError{Code: bye.Code, Reason: string(bye.Reason)}
}

// agree checks that both sides can work together.
func (h *handshake) agree() error {
	t := &h.theirs
	switch {
	case t.MinVersion > frame.Version || t.MaxVersion < frame.Version:
		return h.deny(frame.CodeVersion, fmt.Errorf("the other side speaks versions %d to %d, this one %d", t.MinVersion, t.MaxVersion, frame.Version))
	case h.noKeys != nil && t.Offered&frame.FeaturePSK == 0:
		return h.deny(frame.CodeDenied, fmt.Errorf("%w: %w", ErrDenied, h.noKeys))
	case t.Required&frame.FeaturePSK != 0 && len(h.keys) == 0, h.mine.Required&frame.FeaturePSK != 0 && t.Offered&frame.FeaturePSK == 0:
		return h.deny(frame.CodeDenied, fmt.Errorf("%w: one side has a PSK and the other has none: set the same Config.PSK on both", ErrDenied))
	case t.Required&^h.mine.Offered != 0:
		return h.deny(frame.CodeVersion, fmt.Errorf("the other side requires features %#x, which this one does not have", t.Required))
	case h.client && t.Offered&^h.mine.Offered != 0:
		return h.deny(frame.CodeProtocol, protocolError("features chosen that were not offered"))
	case t.ChannelWindow < minWindow || t.SessionWindow < minWindow:
		return h.deny(frame.CodeProtocol, protocolError("windows of %d and %d bytes, less than %d", t.ChannelWindow, t.SessionWindow, minWindow))
	case t.MaxChannels > 1<<30:
		return h.deny(frame.CodeProtocol, protocolError("%d channels allowed", t.MaxChannels))
	}
	return nil
}

// deny sends the other side the reason for refusing the session, after the magic if
// a server has not sent that yet.
func (h *handshake) deny(code frame.Code, err error) error {
	reason := err.Error()
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		reason = refusal.Reason
	}
	if code == frame.CodeDenied {
		reason = "authentication or authorization failed"
	}
	var out []byte
	if !h.client && !h.sentMagic {
		out = append(out, frame.Magic...)
	}
	f := frame.GoAway{Code: code, Reason: []byte(reason)}
	_, _ = h.conn.Write(f.Append(out)) // best effort; the caller returns err
	return err
}

// authorize asks the application.
func (h *handshake) authorize(ctx context.Context) error {
	if h.cfg.Authorize == nil {
		return nil
	}
	err := h.cfg.Authorize(ctx, h.peer)
	if _, refusal := errors.AsType[*Refusal](err); refusal {
		return h.deny(frame.CodeRefused, err)
	}
	if err != nil {
		return h.deny(frame.CodeDenied, fmt.Errorf("%w: %w", ErrDenied, err))
	}
	return nil
}

// proof is a value that only a side with the key can compute for this handshake.
func (h *handshake) proof(client bool) (sum [32]byte) {
	mac := hmac.New(sha256.New, h.psk)
	side := "hpmux 1 server"
	if client {
		side = "hpmux 1 client"
	}
	mac.Write([]byte(side))
	mac.Write(h.transcript)
	mac.Sum(sum[:0])
	return sum
}

func (h *handshake) prove() error {
	f := frame.Auth{Proof: h.proof(h.client)}
	_, err := h.conn.Write(f.Append(nil))
	return err
}

func (h *handshake) verify() error {
	head, body, err := h.readFrame(frame.TypeAuth)
	if err != nil {
		return err
	}
	var f frame.Auth
	if err := f.Decode(head, body); err != nil {
		return asProtocol(err)
	}
	for i, key := range h.keys {
		h.psk = key
		if want := h.proof(!h.client); hmac.Equal(f.Proof[:], want[:]) && h.noKeys == nil {
			h.peer.PSK, h.peer.Key = true, i
			return nil
		}
	}
	if h.noKeys != nil {
		return h.deny(frame.CodeDenied, fmt.Errorf("%w: %w", ErrDenied, h.noKeys))
	}
	return h.deny(frame.CodeDenied, fmt.Errorf("%w: the other side has another PSK", ErrDenied))
}
