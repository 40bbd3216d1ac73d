package mux

import "time"

// Stats is a snapshot of a session.
type Stats struct {
	Channels                          int // open, of either side's
	Opened, Accepted, Refused, Resets uint64
	MessagesSent, MessagesReceived    uint64        // of streams: pieces
	BytesSent, BytesReceived          uint64        // payload
	Buffered                          uint64        // bytes received and not read, with 64 for each frame
	RTT                               time.Duration // of the last ping; 0: none answered yet

	// Of a session that can be resumed.
	Suspended      bool          // it has no connection now
	Losses         uint64        // connections lost
	Resumed        uint64        // times it resumed on another
	Gap            time.Duration // how long it was without one before it last resumed
	Unacknowledged uint64        // bytes kept to be sent again, with their headers
	SentAgain      uint64        // bytes sent more than once, with their headers
}

// Stats returns the session's counters.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.core.counts
	st := Stats{
		Channels: len(s.core.channels), Opened: c.opened, Accepted: c.accepted, Refused: c.refused, Resets: c.resets,
		MessagesSent: c.messagesSent, MessagesReceived: c.messagesReceived,
		BytesSent: c.bytesSent, BytesReceived: c.bytesReceived,
		Buffered: s.core.rcv.got - s.core.rcv.used + uint64(s.core.claimed+s.core.kept), RTT: time.Duration(s.core.rtt),
	}
	if t := s.ticket; t != nil {
		r := s.core.replay
		st.Suspended, st.Losses, st.Resumed, st.Gap = s.link == nil, t.losses, t.resumed, t.lastGap
		st.Unacknowledged, st.SentAgain = uint64(r.size()), r.again
	}
	return st
}

// add adds o's counters to st.
func (st *Stats) add(o *Stats) {
	st.Channels += o.Channels
	st.Opened += o.Opened
	st.Accepted += o.Accepted
	st.Refused += o.Refused
	st.Resets += o.Resets
	st.MessagesSent += o.MessagesSent
	st.MessagesReceived += o.MessagesReceived
	st.BytesSent += o.BytesSent
	st.BytesReceived += o.BytesReceived
	st.Buffered += o.Buffered
	if st.RTT == 0 || o.RTT > 0 && o.RTT < st.RTT {
		st.RTT = o.RTT
	}
	st.Losses += o.Losses
	st.Resumed += o.Resumed
	st.Gap = max(st.Gap, o.Gap)
	st.Unacknowledged += o.Unacknowledged
	st.SentAgain += o.SentAgain
}
