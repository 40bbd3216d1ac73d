package mux

import "time"

// Stats is a session at one moment.
type Stats struct {
	Channels                          int // open, of either side's
	Opened, Accepted, Refused, Resets uint64
	MessagesSent, MessagesReceived    uint64        // of streams: pieces
	BytesSent, BytesReceived          uint64        // payload
	Buffered                          uint64        // bytes received and not read, with 64 for each frame
	RTT                               time.Duration // of the last ping; 0: none answered yet
}

// Stats returns the session's counters.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.core.counts
	return Stats{
		Channels: len(s.core.channels), Opened: c.opened, Accepted: c.accepted, Refused: c.refused, Resets: c.resets,
		MessagesSent: c.messagesSent, MessagesReceived: c.messagesReceived,
		BytesSent: c.bytesSent, BytesReceived: c.bytesReceived,
		Buffered: s.core.rcv.got - s.core.rcv.used, RTT: time.Duration(s.core.rtt),
	}
}
