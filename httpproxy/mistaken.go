package httpproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
)

// Clients that use TLS on a plain listener, or plain HTTP on one with TLS, get an answer in their protocol.

// errHello says that a client begins with TLS's first message on a listener without TLS.
var errHello = fmt.Errorf("%w: this port does not speak TLS: use http://", httpwire.ErrMalformed)

// isHello reports whether a connection begins with a TLS handshake record of any version (RFC 8446, section 5.1). No
// HTTP request begins like that.
func isHello(start []byte) bool { return len(start) >= 2 && start[0] == 22 && start[1] == 3 }

// noHandshake counts and logs a failed TLS handshake, and answers a client that speaks HTTP.
func (s *session) noHandshake(err error) {
	client := s.lc.RemoteAddr().String()
	if record, ok := errors.AsType[tls.RecordHeaderError](err); !ok || !isRequest(record.RecordHeader[:]) {
		s.noteTLS("TLS handshake error", err)
		return
	}
	s.p.srv.Report(listener.ReasonTLS, slog.LevelInfo, "HTTP without TLS spoken to a listener with TLS", "client", client,
		"hint", "let the client use https://")
	w := newAnswer(true)
	httppool.WriteError(w, &http.Request{Header: http.Header{}}, http.StatusBadRequest, "this port speaks TLS: use https://")
	_ = s.lc.SetWriteDeadline(time.Now().Add(lingerTime))
	if _, err := s.lc.Write(w.bytes()); err != nil {
		return
	}
	unread := stream{}
	unread.use(s.lc)
	unread.lingeringClose()
	unread.drop()
}

// noteTLS counts a failure of TLS, and logs it at debug level because any client can cause it.
func (s *session) noteTLS(what string, err error) {
	s.p.srv.CountError(listener.ReasonTLS)
	s.p.srv.Logger().Debug(what, "client", s.lc.RemoteAddr().String(), "error", err)
}

// isTLSFailure reports whether err, from reading after the handshake, is an error of TLS: the client has sent an alert,
// or something that is not TLS.
func isTLSFailure(err error) bool {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && (op.Op == "local error" || op.Op == "remote error") // as crypto/tls names them
}

// isRequest reports whether a connection begins with a method and a space, as far as its first bytes tell.
func isRequest(start []byte) bool {
	for i, c := range start {
		switch {
		case c == ' ' && i > 0:
			return true
		case c < 'A' || c > 'Z':
			return false
		}
	}
	return true
}
