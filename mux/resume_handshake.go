package mux

import (
	"context"
	"crypto/hmac"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/headpond/headpond/mux/frame"
)

const (
	resumeLabel  = "hpmux 1 resume"
	resumedLabel = "hpmux 1 resumed"
)

var errImpostor = fmt.Errorf("%w: the server that answers does not have the session", ErrDenied)

// present is the client's side of resuming on conn. It returns how much the server has received.
func (s *Session) present(ctx context.Context, conn net.Conn) (last uint64, err error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
	}()
	if t, ok := conn.(*tls.Conn); ok {
		if err := t.HandshakeContext(ctx); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	t := s.ticket
	t.epoch++
	ask := frame.Resume{
		Version: frame.Version, Epoch: t.epoch, Last: s.core.replay.received, Session: s.number, Instance: t.instance,
	}
	s.mu.Unlock()
	wire := ask.Append(nil)
	ask.Proof = s.sign(resumeLabel, wire[:len(wire)-frame.ProofSize])
	wire = ask.Append(nil)
	if _, err := conn.Write(append([]byte(frame.Magic), wire...)); err != nil {
		return 0, err
	}
	h := &handshake{conn: conn}
	if err := h.readMagic(); err != nil {
		return 0, err
	}
	head, body, err := h.readFrame(frame.TypeResumed)
	if err != nil {
		return 0, err
	}
	var answer frame.Resumed
	if err := answer.Decode(head, body); err != nil {
		return 0, asProtocol(err)
	}
	got := append(head.Append(nil), body...)
	want := s.sign(resumedLabel, wire, got[:len(got)-frame.ProofSize])
	if answer.Epoch != ask.Epoch || !hmac.Equal(want[:], answer.Proof[:]) {
		return 0, errImpostor
	}
	return answer.Last, nil
}

// resume is the server's side, for a client that began with a Resume frame. On
// success the error is ErrResumed and the connection is the session's.
func (h *handshake) resume(ctx context.Context, head frame.Header, body []byte) error {
	var ask frame.Resume
	if err := ask.Decode(head, body); err != nil {
		return h.deny(frame.CodeProtocol, asProtocol(err))
	}
	unknown := fmt.Errorf("%w: the session is unknown or has ended", ErrSessionLost)
	var s *Session
	if h.cfg.Resume != nil && ask.Instance == instance {
		s = h.cfg.Resume.find(ask.Session)
	}
	if s == nil {
		return h.deny(frame.CodeOver, unknown)
	}
	wire := append(head.Append(nil), body...)
	want := s.sign(resumeLabel, wire[:len(wire)-frame.ProofSize])
	if !hmac.Equal(want[:], ask.Proof[:]) || certificate(h.peer.TLS) != s.ticket.key {
		return h.deny(frame.CodeDenied, fmt.Errorf("%w: resuming session %v without its ticket, or with another identity", ErrDenied, s.number))
	}
	who := s.peer
	who.Addr, who.TLS, who.Resumes = h.peer.Addr, h.peer.TLS, true
	h.peer = who
	if err := h.authorize(ctx); err != nil {
		return err
	}
	return s.takeOver(h, &ask, wire)
}

// takeOver moves the session to h's connection: it fences the older one, sends the
// client the number of the last frame received, and continues.
func (s *Session) takeOver(h *handshake, ask *frame.Resume, wire []byte) error {
	unknown := fmt.Errorf("%w: the session has ended or was resumed by a newer connection", ErrSessionLost)
	s.mu.Lock()
	t := s.ticket
	if s.core.err != nil || ask.Epoch <= t.epoch || ask.Last < s.core.replay.acked || ask.Last > s.core.replay.sent {
		s.mu.Unlock()
		return h.deny(frame.CodeOver, unknown)
	}
	t.epoch = ask.Epoch
	if s.link != nil {
		t.taken = true
		s.lose(s.link, fmt.Errorf("%w: the client has made another connection", ErrSessionLost))
	}
	old := s.last
	s.mu.Unlock()
	<-old.over // at once: it is closed
	s.mu.Lock()
	answer := frame.Resumed{Epoch: ask.Epoch, Last: s.core.replay.received}
	s.mu.Unlock()
	out := answer.Append(nil)
	answer.Proof = s.sign(resumedLabel, wire, out[:len(out)-frame.ProofSize])
	_, err := h.conn.Write(answer.Append([]byte(frame.Magic)))
	var ahead []byte
	if err == nil {
		h.conn, ahead = detach(h.conn)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core.err != nil || t.epoch != ask.Epoch {
		closeNow(h.conn)
		return unknown // the server that took it from this client is responsible
	}
	t.taken = false
	if err != nil {
		s.count()
		return err
	}
	if err := s.attach(h.conn, ahead, ask.Last); err != nil {
		closeNow(h.conn)
		s.fail(err)
		return err
	}
	return ErrResumed
}
