package pgproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// Clients get the upstream's name and what is wrong, never its servers' addresses: those are in the log.

// Hints for errors that a client cannot fix.
const (
	hintTrouble = "Try again; if it stays so, the gateway's log names the server and the cause."
	hintRules   = "The server's pg_hba.conf needs a rule for the gateway's address, this user and this database."
	hintLogin   = "The gateway's operator has to mend user and password of this upstream, or the server's rules; the log names the server."
)

// loginErrorOf returns the server's answer to the gateway's login, if that is why there is no server connection; else
// nil.
func loginErrorOf(err error) *pgwire.ErrorResponse {
	said, ok := errors.AsType[*loginError](err)
	if e, waited := errors.AsType[*pool.Error](err); !ok || waited && unanswered(e) {
		return nil
	}
	hint, message := hintTrouble, said.Message
	switch hides := said.Routine == routineHBA || hasAddress(message); {
	case said.gateways:
		hint = said.Hint
	case said.as == AsClient && !hides: // as on a direct connection
		m := errorResponse(pgwire.SeverityError, said.Code, message, said.Hint)
		m.Detail = said.Detail
		return m
	case said.as == AsClient:
		message, hint = "the server does not let this user log in to this database from the gateway", hintRules
	default:
		if hides {
			message = "the server does not accept the gateway's login"
		}
		if strings.HasPrefix(said.Code, classAuthorization) {
			hint = hintLogin
		}
	}
	return errorResponse(pgwire.SeverityError, said.Code, message, hint)
}

// unanswered reports whether the wait for a server connection ended while the server did not answer, whatever it
// answered before. A server that lets the gateway have some connections, and no more, is not silent.
func unanswered(e *pool.Error) bool {
	return errors.Is(e.Kind, pool.ErrTimeout) && e.Opening > 0 && e.InUse == 0
}

// classAuthorization begins the SQLSTATEs of refused logins.
const classAuthorization = "28"

// routineHBA is the routine in the error of a server that refuses by pg_hba.conf. Such errors name hosts.
const routineHBA = "ClientAuthentication"

// hasAddress reports whether a text contains an IP address.
func hasAddress(text string) bool {
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF.:", c) }) {
		if _, err := netip.ParseAddr(strings.Trim(word, ".")); err == nil {
			return true
		}
		if _, err := netip.ParseAddrPort(word); err == nil {
			return true
		}
	}
	return false
}

// unavailableText says why there is no server connection, if not because all are in use.
func unavailableText(upstream string, err error) string {
	return fmt.Sprintf("upstream %q: no server connection: %s", upstream, noServerReason(err))
}

func noServerReason(err error) string {
	if e, ok := errors.AsType[*upstream.Error](err); ok && len(e.Roles) > 0 {
		return noRoleText(e)
	}
	if e, ok := errors.AsType[*pool.Error](err); ok && unanswered(e) {
		return "the server did not answer in time" // whatever an earlier attempt resulted in, which err wraps too
	}
	if m, ok := errors.AsType[*pgwire.ErrorResponse](err); ok && !hasAddress(m.Message) {
		return fmt.Sprintf("the server says: %s (SQLSTATE %s)", m.Message, m.Code)
	}
	_, unknown := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case errors.Is(err, pgwire.ErrAuth):
		return "the server cannot prove its identity"
	case errors.Is(err, errNoFence):
		return "the server has not sent a notification in time"
	case errors.Is(err, errMoved):
		return errMoved.Error()
	case errors.Is(err, errAllDead):
		return "all of them had died"
	case unknown:
		return "the server's name cannot be resolved"
	case certificate:
		return "the server's certificate is not accepted"
	case noTLS || errors.Is(err, errNoTLS):
		return "the server does not speak TLS"
	case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
		return "the gateway has no file descriptors left"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		return "the server did not answer in time"
	}
	return "the server cannot be reached"
}

// exhaustedText says which limit was reached when there was no server connection.
func exhaustedText(upstream string, err error) string {
	e, ok := errors.AsType[*pool.Error](err)
	switch {
	case !ok && errors.Is(err, pool.ErrTooManyWaiters):
		return fmt.Sprintf("upstream %q: too many clients wait for a server connection", upstream)
	case !ok:
		return fmt.Sprintf("upstream %q: every server connection is in use", upstream)
	case errors.Is(e.Kind, pool.ErrTooManyWaiters):
		return fmt.Sprintf("upstream %q: too many clients wait for a server connection (in use: %d of max_size %d; waiting: %d)",
			upstream, e.InUse, e.MaxSize, e.Waiting)
	}
	if e.Budget > 0 {
		return fmt.Sprintf("upstream %q: no server connection became free in %v: all users and databases together have max_connections, %d (in use: %d; waiting: %d)",
			upstream, e.Waited.Round(time.Millisecond), e.Budget, e.InUse, e.Waiting)
	}
	return fmt.Sprintf("upstream %q: no server connection became free in %v (in use: %d of max_size %d; waiting: %d)",
		upstream, e.Waited.Round(time.Millisecond), e.InUse, e.MaxSize, e.Waiting)
}

// lostText says why a server connection was lost.
func lostText(upstream string, cause error) string {
	why := "it broke off"
	m, isServer := errors.AsType[*pgwire.ErrorResponse](cause)
	switch {
	case isServer:
		why = "the server says: " + m.Message
	case errors.Is(cause, errRemoved):
		why = "its endpoint has been removed"
	case errors.Is(cause, errMoved):
		why = errMoved.Error()
	case errors.Is(cause, errNoFence):
		why = errNoFence.Error()
	case errors.Is(cause, io.EOF):
		why = "the server closed it"
	case errors.Is(cause, syscall.ECONNRESET):
		why = "it was reset"
	case errors.Is(cause, errUnclear):
		why = "its client sent requests in the data of a COPY that failed, and which of them it answers is unknown"
	case errors.Is(cause, errBackendProtocol):
		why = "the server did not keep to the protocol"
	case isTimeout(cause):
		why = "the server did not answer in time"
	}
	return fmt.Sprintf("upstream %q: server connection lost: %s", upstream, why)
}
