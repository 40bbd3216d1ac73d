package udpproxy

import (
	"errors"
	"net/netip"
	"time"
)

// A busy machine may take more than a second between two datagrams.
func init() { refusalTime, holdTime = 5*time.Second, time.Hour }

// SetHoldTime replaces holdTime until restore.
func SetHoldTime(d time.Duration) (restore func()) {
	was := holdTime
	holdTime = d
	return func() { holdTime = was }
}

// Interrupted and Blames are what an error on the socket of a session means.
var (
	Interrupted = interrupted
	Blames      = blames
)

// MaxHeld is the bound of datagrams held for a session.
const MaxHeld = maxHeld

// Held is how many bytes are held for the clients of l.
func (l *Listener) Held() int64 { return l.port.held.Load() }

// Replay returns a function that does what the reader does with a datagram of a client.
func (l *Listener) Replay(client, text string) func() {
	packets := []packet{{data: []byte(text), peer: netip.MustParseAddrPort(client)}}
	return func() { l.port.receive(packets) }
}

// MaxHeldInAll is the bound of bytes held for all sessions of a listener.
const MaxHeldInAll = maxHeldInAll

// Fail has the reader of l fail.
func (l *Listener) Fail(err error) { l.port.failures <- errors.Join(errReader, err) }

// Break has every receive of the reader of l fail, until Mend.
func (l *Listener) Break() { _ = l.port.socket.conn.SetReadDeadline(time.Unix(1, 0)) }

// Mend ends Break.
func (l *Listener) Mend() { _ = l.port.socket.conn.SetReadDeadline(time.Time{}) }

// PauseAfter is the reader's pause after another one.
var PauseAfter = pauseAfter

// SessionPauseAfter is a session's, and MaxSessionPause its bound.
var SessionPauseAfter = sessionPauseAfter

const MaxSessionPause = maxSessionPause

// From reports whether the socket of a session takes a datagram of a sender; "" = unknown.
func From(endpoint, sender string) bool {
	p := packet{}
	if sender != "" {
		p.peer = netip.MustParseAddrPort(sender)
	}
	return (&Socket{peer: netip.MustParseAddrPort(endpoint)}).from(&p)
}

// Doubt is a refusal by an endpoint that has answered before.
type Doubt struct{ d doubt }

// Raise and Believed are the doubt's.
func (d *Doubt) Raise(refusal error, at, spoken time.Time) { d.d.raise(refusal, at, spoken) }
func (d *Doubt) Believed(last time.Time) time.Time         { return d.d.believed(last) }

// RefusalTime is how long a refusal has to last.
var RefusalTime = &refusalTime
