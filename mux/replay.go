package mux

import (
	"encoding/binary"
	"errors"

	"github.com/headpond/headpond/mux/frame"
)

// replay is the state with which a session outlives its connection: the numbered
// frames sent and not acknowledged, as bytes in a ring, and the number of the last one
// received. All that is written goes through the ring. The session's lock guards it;
// the goroutine that writes may read bytes from write to chunk without the lock.
//
// Offsets count all bytes ever staged: head and write ≤ chunk ≤ end. Acknowledgements
// may arrive before the write that sent their frames has returned, so head may be
// ahead of write.
type replay struct {
	buf                     []byte // length: a power of two
	limit                   int    // bytes from which on no batch is added
	head, write, chunk, end uint64
	acked, sent             uint64 // numbers of the frames that end at head and end
	received, ackSent       uint64 // numbers of the last frame received, and acknowledged
	since, quarter          int    // bytes received since ackSent; how many call for an ack at once
	due                     bool   // an Ack frame is to be sent
	armed                   bool   // the ack timer runs
	backpressure            bool   // senders fail rather than wait for room
	again                   uint64 // bytes written more than once, ever
	ended                   []ended
}

// ended is a channel that is over while frames of it are not acknowledged.
type ended struct {
	was Unacknowledged
	seq uint64 // of its last frame, or a later one; 0: that is not in the ring yet
}

// maxEnded bounds them: a peer that opens and resets channels and acknowledges nothing could make
// this side remember any number.
const maxEnded = 1024

var errBadAck = errors.New("acknowledgement of a frame that was not sent")

// size is the number of bytes in the ring.
func (r *replay) size() int { return int(r.end - r.head) }

func (r *replay) full() bool { return r.size() >= r.limit }

// ahead is the number of bytes in the ring that no write has begun to take.
func (r *replay) ahead() int { return int(r.end - r.chunk) }

// at is where the byte with the offset is in buf.
func (r *replay) at(off uint64) int { return int(off & uint64(len(r.buf)-1)) }

// room makes room for n more bytes.
func (r *replay) room(n int) {
	from := min(r.head, r.write)
	need := int(r.end-from) + n
	if need <= len(r.buf) {
		return
	}
	size := max(len(r.buf), frame.MinReplay)
	for size < need {
		size *= 2
	}
	old := *r
	r.buf = make([]byte, size)
	for off := from; off < r.end; {
		p := old.slice(off, r.end)
		copy(r.buf[r.at(off):], p[:min(len(p), size-r.at(off))])
		off += uint64(min(len(p), size-r.at(off)))
	}
}

// shrink frees an empty ring's memory. No goroutine may be writing.
func (r *replay) shrink() {
	if r.head == r.end && r.write == r.end {
		r.buf = nil
	}
}

// slice returns the contiguous bytes from off on, to end at most.
func (r *replay) slice(off, end uint64) []byte {
	i := r.at(off)
	return r.buf[i:min(len(r.buf), i+int(end-off))]
}

func (r *replay) append(p []byte) {
	for len(p) > 0 {
		n := copy(r.buf[r.at(r.end):], p)
		r.end += uint64(n)
		p = p[n:]
	}
}

// take copies the numbered frames of b into the ring, and an acknowledgement into each.
func (r *replay) take(b *batch) {
	n := len(b.ctl) + len(b.out)
	for _, s := range b.segs {
		n += len(s.data)
	}
	r.room(n)
	r.stamp(b.ctl, nil)
	r.stamp(b.out, b.segs)
	r.append(b.ctl)
	at := 0
	for _, s := range b.segs {
		r.append(b.out[at:s.at])
		r.append(s.data)
		at = s.at
	}
	r.append(b.out[at:])
	for i := len(r.ended) - 1; i >= 0 && r.ended[i].seq == 0; i-- {
		r.ended[i].seq = r.sent
	}
	r.ackSent, r.since, r.due = r.received, 0, false
}

// stamp numbers the frames in p, payloads in segs, and acknowledges in them.
func (r *replay) stamp(p []byte, segs []segment) {
	for at := 0; at < len(p); r.sent++ {
		binary.BigEndian.PutUint32(p[at+12:], uint32(r.received))
		next := at + frame.HeaderSize + int(binary.BigEndian.Uint32(p[at+4:]))
		if len(segs) > 0 && segs[0].at < next {
			next -= len(segs[0].data)
			segs = segs[1:]
		}
		at = next
	}
}

// header reads length, type and the rest of the frame's header at off.
func (r *replay) header(off uint64) frame.Header {
	var b [frame.HeaderSize]byte
	for i := range b {
		b[i] = r.buf[r.at(off+uint64(i))]
	}
	return frame.Header{
		Type: frame.Type(b[0]), Flags: frame.Flags(b[1]),
		Length: binary.BigEndian.Uint32(b[4:]), Channel: binary.BigEndian.Uint32(b[8:]),
	}
}

// length returns the length of the body of the frame at off.
func (r *replay) length(off uint64) uint64 {
	if i := r.at(off); i+8 <= len(r.buf) {
		return uint64(binary.BigEndian.Uint32(r.buf[i+4:]))
	}
	return uint64(r.header(off).Length)
}

// handleAck handles the low bits of an acknowledgement, which every header has.
func (r *replay) handleAck(low uint32) error {
	if d := int32(low - uint32(r.acked)); d > 0 {
		return r.ack(r.acked + uint64(d))
	}
	return nil // nothing new
}

// ack drops the frames up to number n.
func (r *replay) ack(n uint64) error {
	if n > r.sent {
		return errBadAck
	}
	for r.acked < n {
		if r.head >= r.chunk {
			return errBadAck
		}
		r.head += frame.HeaderSize + r.length(r.head)
		r.acked++
	}
	for len(r.ended) > 0 && r.ended[0].seq != 0 && r.ended[0].seq <= r.acked {
		r.ended[0] = ended{}
		r.ended = r.ended[1:]
	}
	return nil
}

// forget keeps the data that unacknowledged needs of an ended channel.
func (r *replay) forget(ch *channel) {
	if len(r.ended) == maxEnded {
		r.ended = r.ended[1:]
	}
	r.ended = append(r.ended, ended{was: ch.describe()})
}

// pieces appends the bytes to be written next to dst.
func (r *replay) pieces(dst [][]byte) [][]byte {
	for off := r.write; off < r.chunk; {
		p := r.slice(off, r.chunk)
		dst = append(dst, p)
		off += uint64(len(p))
	}
	return dst
}

// rewind makes everything after frame number last be written again. No goroutine may
// be writing. It reports false if the ring does not reach back that far.
func (r *replay) rewind(last uint64) bool {
	if last < r.acked || r.ack(last) != nil {
		return false
	}
	r.again += max(r.write, r.head) - r.head
	r.write, r.chunk = r.head, r.head
	r.ackSent, r.since, r.due = r.received, 0, false
	return true
}

// count counts a numbered frame of n bytes that was received.
func (r *replay) count(n int) {
	r.received++
	if r.since += n; r.since >= r.quarter {
		r.due = true
	}
}

// unacknowledged returns data that may or may not have arrived: the last messages of each channel,
// or bytes of a stream.
func (r *replay) unacknowledged(channels map[uint32]*channel) (all []Unacknowledged) {
	index := map[uint32]int{}
	for off := r.head; off < r.end; {
		h := r.header(off)
		off += frame.HeaderSize + uint64(h.Length)
		if h.Type != frame.TypeData || h.Flags&frame.FlagAbort != 0 {
			continue
		}
		i, ok := index[h.Channel]
		if !ok {
			i = len(all)
			index[h.Channel] = i
			all = append(all, r.describe(channels, h.Channel))
		}
		u := &all[i]
		if u.Bytes += uint64(h.Length); h.Flags&frame.FlagSized != 0 {
			u.Bytes -= 4
		}
		if h.Flags&(frame.FlagMore|frame.FlagFin) == 0 && !u.Stream {
			u.Messages++
		}
	}
	kept := all[:0]
	for _, u := range all {
		if u.Bytes > 0 || u.Messages > 0 {
			kept = append(kept, u)
		}
	}
	return kept
}

func (r *replay) describe(channels map[uint32]*channel, num uint32) Unacknowledged {
	for i := range r.ended {
		if r.ended[i].was.Channel == num {
			return r.ended[i].was
		}
	}
	if ch := channels[num]; ch != nil {
		return ch.describe()
	}
	return Unacknowledged{Channel: num}
}

func (ch *channel) describe() Unacknowledged {
	return Unacknowledged{Channel: ch.num, Name: ch.name, ID: ch.id, Stream: ch.kind == frame.KindStream}
}
