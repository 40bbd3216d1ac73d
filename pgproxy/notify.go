package pgproxy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// LISTEN in transaction mode. While a client has a server connection, that connection listens for the client, and
// everything is as on a direct connection: LISTEN takes effect at COMMIT, and the client's own notifications come
// before the end of the answer. When the transaction is over and a check (keep.go) has found channels, the backend's
// listening connection takes over (park), and another client can have the server connection. The client's next
// transaction reverses this (unpark). At both moments both connections receive a fence, a notification that the
// listening connection sends: it separates the notifications that come from the one connection from those that come
// from the other, so that the client gets each notification once, in order.

// park makes the listening connection listen for the client in place of the server connection. It reports whether it
// does: if not, the client must keep the server connection. An error is the end of the session.
func (s *session) park() (parked bool, err error) {
	srv := s.srv
	if why := s.unparkable(); why != nil {
		return false, s.cannotPark(why)
	}
	srv.flags |= leftListen // a function may have listened
	var conn *listenConn
	fiber.Block(func() {
		ctx, stop := context.WithTimeout(s.ctx, s.b.listening.patient().login)
		defer stop()
		conn, err = s.b.listening.get(ctx, s.b, srv.endpoint)
	})
	if err != nil {
		return false, s.cannotPark(err)
	}
	rows, err := srv.runSeparately("SELECT '', c FROM pg_catalog.pg_listening_channels() AS c;"+bootSQL+";LISTEN "+conn.fence+s.machine.deferrable("off"), nil)
	switch {
	case refused(err):
		return false, s.cannotPark(err)
	case err != nil:
		return false, s.lostWhile("reading the channels of the client", err)
	}
	var channels []string
	for _, p := range rows {
		if p.Name == "" && p.Value != conn.fence {
			channels = append(channels, p.Value)
		}
	}
	slices.Sort(channels)
	sub := s.machine.sub
	if sub == nil {
		sub = &subscription{c: s.c}
	}
	defer func() {
		if !parked {
			sub.end()
		}
	}()
	switch {
	case len(channels) > maxChannels:
		err = errTooManyChannels
	case bootOf(rows) != conn.boot:
		err = errMoved
	default:
		err = s.parkAt(conn, &fenceRequest{sub: sub, park: true, channels: channels})
	}
	if err != nil {
		return false, s.afterRefusal(conn, err)
	}
	return true, s.parked(sub)
}

// parkAt makes the listening connection take over. The server connection already listens to the fence's channel. Its
// notifications up to the fence are in srv.notified afterwards.
func (s *session) parkAt(conn *listenConn, r *fenceRequest) error {
	if err := s.fence(conn, r); err != nil {
		return err
	}
	if _, err := s.srv.runSeparately("UNLISTEN *"+s.machine.deferrable("on"), nil); err != nil {
		return s.lostWhile("ending LISTEN", err)
	}
	s.srv.notified, _ = conn.cut(s.srv.notified, r.payload)
	return nil
}

// parked notes that the listening connection has taken over, and writes the notifications from before to the client.
func (s *session) parked(sub *subscription) error {
	m, srv := &s.machine, s.srv
	if m.sub == nil {
		m.sub = sub
		m.rules.listening.Add(1)
		s.b.listening.know(sub)
	}
	before := srv.notified
	srv.notified = nil
	srv.flags &^= leftListen
	m.listens = false
	return s.tellNotifications(before)
}

// fence sends a fence through both connections, for a request. After an error that does not end the session both are
// as before: the request has failed, or has been withdrawn.
func (s *session) fence(conn *listenConn, r *fenceRequest) (err error) {
	fiber.Block(func() {
		if err = conn.ask(r); err == nil {
			err = conn.await(s.ctx, r)
		}
	})
	if err != nil {
		if !conn.abandon(r) && !r.park && conn.ended() == nil {
			return s.lostWhile("handing notifications over", err) // the fence has passed on the listening connection
		}
		return err
	}
	come, err := s.srv.awaitFence(conn, r.payload)
	switch {
	case err != nil:
		return s.lostWhile("waiting for notifications", err)
	case !come && !r.park:
		return s.lostWhile("handing notifications over", errNoFence)
	case !come:
		s.b.suspendListening(errNoFence, unfitForFences)
		return errNoFence
	}
	return nil
}

// lostWhile handles a failure of the server connection, which ends the session.
func (s *session) lostWhile(doing string, err error) error {
	return s.serverFailed(fmt.Errorf("%s: %w", doing, err), false)
}

// isOver reports whether an error ends the session.
func (s *session) isOver(err error) bool {
	_, lost := errors.AsType[*backendError](err)
	return lost || s.c.over(s.ctx) != nil
}

// afterRefusal is cannotPark while the server connection listens to fences. An error is the end of the session.
func (s *session) afterRefusal(conn *listenConn, why error) error {
	if s.isOver(why) {
		return why
	}
	if _, err := s.srv.runSeparately("UNLISTEN "+conn.fence+s.machine.deferrable("on"), nil); err != nil {
		return s.lostWhile("ending LISTEN", err)
	}
	s.srv.notified, _ = conn.cut(s.srv.notified, "")
	return s.cannotPark(why)
}

// cannotPark ends the client's subscription: the client keeps its server connection to listen.
func (s *session) cannotPark(why error) error {
	s.c.Logger().Debug("the listening connection cannot listen for the client", "reason", why)
	s.srv.parkLater = !errors.Is(why, errTooManyChannels)
	s.unsubscribe()
	return nil
}

// parkLater makes keep try again to park a client that is pinned because the listening connection could not listen
// for it, as soon as that may be possible.
func (s *session) parkLater() {
	m, srv := &s.machine, s.srv
	if srv.parkLater && srv.pins == traceChannels && m.st.reusable() && s.unparkable() == nil {
		srv.parkLater = false
		m.traces |= traceChannels
	}
}

// unsubscribe ends the client's subscription to the listening connection.
func (s *session) unsubscribe() {
	m := &s.machine
	if m.sub == nil {
		return
	}
	m.sub.end()
	m.sub = nil
	m.rules.listening.Add(-1)
	s.b.listening.forget(s.c)
}

// unparkable returns why the listening connection cannot listen for the client, nil if it can, as far as is known.
func (s *session) unparkable() error {
	if s.machine.otherEncoding() {
		return errors.New("the client has another encoding than the listening connection")
	}
	if s.b.up.OnlyEndpoint() != s.srv.endpoint {
		return errSeveralEndpoints
	}
	return s.b.cannotListen()
}

// otherEncoding reports whether the client's encoding differs from the initial one of server connections.
func (m *machine) otherEncoding() bool {
	encoding := tracked("client_encoding")
	for _, p := range m.server.baseline {
		if tracked(p.Name) == encoding {
			return p.Value != m.reported.Value().value[encoding]
		}
	}
	return false
}

// runSeparately runs SQL of the gateway's in a transaction of its own, which waits for no other transaction and which
// statement_timeout does not end, whatever the client has set. hit, if not nil, reports whether a cancel request may
// have been meant for this SQL. After a server's error that is not fatal, nothing has been done.
func (s *server) runSeparately(sql string, hit func() bool) (rows []pgwire.Param, err error) {
	_ = s.conn.SetDeadline(time.Now().Add(requestTimeout))
	defer func() { _ = s.conn.SetDeadline(time.Time{}) }()
	const begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
	rows, err = s.settingRows(begin + sql + ";COMMIT")
	for n := 0; canceled(err) && (hit == nil || !hit()) && n < maxAttempts; n++ {
		rows, err = s.settingRows("ROLLBACK;" + begin + "SET LOCAL statement_timeout = 0;" + sql + ";COMMIT")
	}
	if said, ok := errors.AsType[*pgwire.ErrorResponse](err); ok && !said.Fatal() {
		if ended := s.exec("ROLLBACK"); ended != nil {
			err = ended
		}
	}
	return rows, err
}

// deferrable returns what to append to the SQL of apart if the client's transactions are deferrable by default. The
// server reads notifications for an idle connection in a transaction with that default, and it might wait there for
// other transactions.
func (m *machine) deferrable(value string) string {
	const name = "default_transaction_deferrable"
	for _, p := range settingsOfKey(m.settingsKey) {
		if p.Name == name && p.Value == "on" {
			return ";SET " + name + " = " + value
		}
	}
	return ""
}

// refused reports whether a server refused the SQL of apart, so that the server connection is as before.
func refused(err error) bool { return ordinary(err) || canceled(err) }

// awaitFence reads what the server sends by itself, up to a fence. come is false if the fence did not arrive in time.
func (s *server) awaitFence(conn *listenConn, payload string) (come bool, err error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(conn.b.listening.patient().fence))
	defer func() { _ = s.conn.SetReadDeadline(time.Time{}) }()
	for at := 0; ; {
		if _, come := conn.cut(s.notified[at:], payload); come {
			return true, nil
		}
		at = len(s.notified)
		h, err := s.r.Next()
		if err != nil && isTimeout(err) && s.r.Buffered() == 0 {
			return false, nil
		}
		if err == nil {
			err = s.asynchronous(h.Type)
		}
		if err != nil {
			return false, err
		}
	}
}

// asynchronous reads the body of a message that the server sends by itself.
func (s *server) asynchronous(typ byte) error {
	switch typ {
	case pgwire.TypeNotificationResponse:
		return s.readNotification()
	case pgwire.TypeParameterStatus:
		return s.readParameter()
	case pgwire.TypeNoticeResponse:
		return s.r.Skip()
	case pgwire.TypeErrorResponse:
		return s.readFatal()
	}
	return fmt.Errorf("%w: type %q of an idle server", errBackendProtocol, typ)
}

// cut returns a server connection's notifications before the fence with a payload, and whether that fence is among
// them. It omits other fences.
func (l *listenConn) cut(notified []byte, payload string) (before []byte, come bool) {
	before, behind, come := l.cutAt(notified, payload)
	if !come {
		before = append(before, behind...)
	}
	return before, come
}

// cutAt is cut, and also returns the notifications after the fence.
func (l *listenConn) cutAt(notified []byte, payload string) (before, behind []byte, come bool) {
	for rest := notified; len(rest) > headerSize; {
		n := min(headerSize+messageLength(rest), len(rest))
		msg := rest[:n]
		rest = rest[n:]
		var m pgwire.NotificationResponse
		switch err := m.Decode(msg[headerSize:]); {
		case err == nil && m.Channel == l.fence:
			come = come || m.ProcessID == l.srv.pid && m.Payload == payload
		case come:
			behind = append(behind, msg...)
		default:
			before = append(before, msg...)
		}
	}
	return before, behind, come
}

// tellNotifications writes notifications of the server connection to the client.
func (s *session) tellNotifications(messages []byte) error {
	for len(messages) > headerSize {
		n := headerSize + messageLength(messages)
		s.machine.ownNotification(messages[headerSize:n])
		if _, err := s.c.Writer.Write(messages[:n]); err != nil {
			return clientWriteError(err)
		}
		messages = messages[n:]
	}
	return nil
}

// ownNotification changes the process ID of a notification, in a message body. One that the client itself sent gets
// the process ID that the client was told; another one with that number gets a different one. Drivers compare them.
func (m *machine) ownNotification(body []byte) {
	if len(body) < pidSize {
		return
	}
	from, own := binary.BigEndian.Uint32(body), uint32(m.client)
	switch from {
	case m.server.pid:
		binary.BigEndian.PutUint32(body, own)
	case own:
		binary.BigEndian.PutUint32(body, from^1<<31) // no process has this ID
	}
}

// takeOver is unpark. While the leased server connection leads to another server than the listening connection, it
// tries with another one: such server connections are old.
func (s *session) takeOver() (err error) {
	for range maxStale {
		if err = s.unpark(); !errors.Is(err, errNotHandedOver) || !errors.Is(err, errMoved) {
			return err
		}
		if err = s.acquire(nil); err != nil {
			return err
		}
	}
	return err
}

// unpark makes the server connection that was leased for the client listen for it, in place of the listening
// connection. The client first gets the notifications from before. After errNotHandedOver everything is as before,
// and the session has no server connection.
func (s *session) unpark() error {
	m, srv := &s.machine, s.srv
	conn, channels := m.sub.state()
	switch {
	case conn.ended() != nil:
		return s.endListening()
	case conn.srv.endpoint != srv.endpoint:
		conn.fail(errRemoved)
		return s.endListening()
	}
	var sql strings.Builder
	for _, name := range channels {
		sql.WriteString("LISTEN " + identifierOf(name) + ";")
	}
	sql.WriteString("LISTEN " + conn.fence + ";" + bootSQL + m.deferrable("off"))
	srv.collects, srv.notified = true, nil
	srv.flags |= leftListen
	rows, err := srv.runSeparately(sql.String(), s.wasCanceled)
	if err == nil && bootOf(rows) != conn.boot {
		srv.mustClose = true
		err = errMoved
	}
	if err != nil {
		return s.staysParked(err, refused(err))
	}
	r := &fenceRequest{sub: m.sub}
	if err := s.fence(conn, r); err != nil && !s.isOver(err) && conn.ended() == nil {
		return s.staysParked(err, true)
	} else if err != nil {
		srv.mustClose = true // it listens, and has the setting of deferrable
		if s.isOver(err) {
			return err
		}
		return s.endListening()
	}
	if _, err := srv.runSeparately("UNLISTEN "+conn.fence+m.deferrable("on"), nil); err != nil {
		return s.lostWhile("ending LISTEN", err)
	}
	_, behind, _ := conn.cutAt(srv.notified, r.payload)
	srv.collects, srv.notified = false, nil
	m.listens, m.traces = true, m.traces|traceChannels // so that a check follows the transaction
	if err := s.deliver(); err != nil {
		return err
	}
	return s.tellNotifications(behind)
}

// errNotHandedOver means that a server connection cannot listen for the client, so that no transaction can begin.
var errNotHandedOver = errors.New("the server connection cannot take over notifications")

// staysParked gives back a server connection that cannot listen for the client. fit means that it may serve other
// clients.
func (s *session) staysParked(why error, fit bool) error {
	srv := s.srv
	srv.collects, srv.notified = false, nil
	if canceled(why) && s.wasCanceled() {
		why = errCanceled
	}
	if fit && !srv.mustClose {
		_, err := srv.runSeparately("UNLISTEN *"+s.machine.deferrable("on"), nil)
		fit = err == nil
	}
	if fit {
		srv.flags &^= leftListen
		s.release()
	} else {
		s.discard()
	}
	return fmt.Errorf("%w: %w", errNotHandedOver, why)
}

// deliver writes the client's notifications from the listening connection to the client.
func (s *session) deliver() error {
	sub := s.machine.sub
	messages, over := sub.takePending()
	defer sub.written()
	for _, n := range messages {
		msg := n.raw
		if binary.BigEndian.Uint32(msg[headerSize:]) == uint32(s.machine.client) {
			msg = slices.Clone(msg)
			msg[headerSize] ^= 1 << 7 // see ownNotification
		}
		if _, err := s.c.Writer.Write(msg); err != nil {
			return clientWriteError(err)
		}
	}
	if over != nil {
		return s.endListening()
	}
	return nil
}

// endListening tells the client that it no longer listens, and why. The returned error ends the session.
func (s *session) endListening() error {
	conn, _ := s.machine.sub.state()
	cause := cmp.Or(s.machine.sub.ended(), conn.ended(), errNoFence)
	if cause == errDeaf { //nolint:errorlint // as deafen has set it
		return clientWriteError(cause)
	}
	s.c.CountError(listener.ReasonBackendGone)
	code := sqlStateOfLost(cause)
	s.c.CountSQLState(code)
	if fatal, ok := errors.AsType[*fatalError](cause); ok && fatal.Fatal() {
		s.c.Writer.Header(pgwire.TypeErrorResponse, len(fatal.body))
		_, _ = s.c.Writer.Write(fatal.body) // Flush reports the error
	} else {
		s.c.Writer.Send(errorResponse(pgwire.SeverityFatal, code, lostText(s.b.cfg.Name, cause), "Connect and LISTEN again: notifications may have been lost."))
	}
	_ = s.c.Writer.Flush()
	return &backendError{endpoint: conn.srv.endpoint, err: fmt.Errorf("listening: %w", cause)}
}

// clearWake removes the deadline that woke the session. Another goroutine set it, so that it may still be on its way
// to the connection's loop: what follows Block comes after it.
func (s *session) clearWake() {
	fiber.Block(func() {})
	s.clearDeadline()
}

// idleListening is idle for a client that listens: the client gets its notifications during the wait.
func (s *session) idleListening() (h pgwire.Header, err error) {
	sub := s.machine.sub
	defer func() {
		if err != nil && sub.ended() == errDeaf { //nolint:errorlint // as deafen has set it
			err = clientWriteError(errDeaf)
		}
	}()
	for {
		if sub.waited() { // while the session was suspended
			s.clearWake()
		}
		if s.srv == nil {
			sub.stranded()
		}
		if err := s.deliver(); err != nil {
			return h, err
		}
		if !sub.wait() {
			continue
		}
		h, err = s.c.nextIdle(s.idlePatience())
		if err == ErrSuspended { //nolint:errorlint // as NextIdle returned it
			return h, err
		}
		woken := sub.waited()
		if woken {
			s.clearWake()
		}
		if !woken || !isTimeout(err) || s.c.over(s.ctx) != nil {
			s.asks()
			return h, err
		}
	}
}

// messageLength returns the body length of the message at the start of b, in bytes.
func messageLength(b []byte) int { return int(binary.BigEndian.Uint32(b[1:])) - (headerSize - 1) }
