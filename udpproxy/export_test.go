package udpproxy

import "net/netip"

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
