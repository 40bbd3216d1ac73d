package mux_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// model runs two cores against the dumb alternative: a queue of messages for
// each direction of each channel.
type model struct {
	t     *testing.T
	r     *rand.Rand
	cores [2]*mux.Core
	wire  [2][]byte // on its way to cores[i]
	pairs []*modelPair
	next  uint64
	cuts  int
}

// modelPair is a channel; ends[i] is at cores[i].
type modelPair struct {
	opener int
	ends   [2]mux.CoreChannel
	known  [2]bool
	queue  [2][]uint64 // sent by ends[i], in order, and not cancelled
	sends  [2][]pending
	ended  [2]bool // ends[i] sends no more
	wild   bool    // closed or reset: messages may be lost, never changed
}

type pending struct {
	id uint64
	s  mux.CoreSend
}

func (m *model) message() (uint64, []byte) {
	m.next++
	size := []int{8, 9, 100, 1024, 5000, 40_000, 100_000}[m.r.IntN(7)]
	b := make([]byte, size)
	binary.BigEndian.PutUint64(b, m.next)
	for i := 8; i < size; i++ {
		b[i] = byte(m.next) + byte(i)
	}
	return m.next, b
}

func (m *model) check(b []byte) uint64 {
	id := binary.BigEndian.Uint64(b)
	for i := 8; i < len(b); i++ {
		if b[i] != byte(id)+byte(i) {
			m.t.Fatalf("message %d of %d bytes is damaged at %d", id, len(b), i)
		}
	}
	return id
}

// move writes one side's batch, and delivers part of the bytes on the wire, frame by frame.
func (m *model) move(side int) {
	m.wire[1-side] = append(m.wire[1-side], m.cores[side].Output()...)
	for n := m.r.IntN(8); n > 0 && len(m.wire[1-side]) > 0; n-- {
		w := m.wire[1-side]
		h, err := frame.ParseHeader(w)
		if err != nil {
			m.t.Fatal(err)
		}
		body := w[frame.HeaderSize:][:h.Length]
		if err := m.cores[1-side].Input(h, body, m.r.IntN(2) == 0); err != nil {
			m.t.Fatalf("%v refused: %v", h.Type, err)
		}
		m.wire[1-side] = w[frame.HeaderSize+len(body):]
	}
	m.cores[side].Now += m.r.Int64N(1000)
}

func (m *model) open(side int) {
	ch, err := m.cores[side].Open(mux.Priority(m.r.IntN(5)), byte(len(m.pairs)))
	if errors.Is(err, mux.ErrTooManyChannels) {
		return
	}
	if err != nil {
		m.t.Fatal(err)
	}
	p := &modelPair{opener: side}
	p.ends[side], p.known[side] = ch, true
	m.pairs = append(m.pairs, p)
	m.wait(side, ch)
}

// wait makes receivers wait all the time on some channels, and now and then on others.
func (m *model) wait(side int, ch mux.CoreChannel) {
	if m.r.IntN(2) == 0 {
		m.cores[side].Wait(ch)
	}
}

// accept matches channels by the number in their ID.
func (m *model) accept(side int) {
	ch, ok := m.cores[side].Accept()
	if !ok {
		return
	}
	p := m.pairs[ch.Number()]
	if p.opener == side || p.known[side] {
		m.t.Fatal("accepted a channel that the other side did not open")
	}
	p.ends[side], p.known[side] = ch, true
	m.wait(side, ch)
}

func (m *model) act(p *modelPair, side int) {
	c, end := m.cores[side], p.ends[side]
	switch n := m.r.IntN(100); {
	case n < 45 && !p.ended[side]:
		id, data := m.message()
		p.sends[side] = append(p.sends[side], pending{id, c.Send(end, data)})
		p.queue[side] = append(p.queue[side], id)
	case n < 90:
		m.receive(p, side)
	case n < 95:
		m.cancel(p, side)
	case n < 97 && len(m.pairs) > 3 && len(p.queue[side]) == 0:
		c.CloseWrite(end)
		p.ended[side] = true
	case n == 98 && m.r.IntN(8) == 0:
		c.Close(end)
		p.wild, p.ended[side] = true, true
	case n == 99 && m.r.IntN(8) == 0:
		c.Reset(end)
		p.wild, p.ended[side] = true, true
	}
}

func (m *model) cancel(p *modelPair, side int) {
	if len(p.sends[side]) == 0 {
		return
	}
	i := m.r.IntN(len(p.sends[side]))
	s := p.sends[side][i]
	if !m.cores[side].Cancel(s.s, errors.New("canceled")) {
		return
	}
	for j, id := range p.queue[side] {
		if id == s.id {
			p.queue[side] = append(p.queue[side][:j:j], p.queue[side][j+1:]...)
			return
		}
	}
}

// receive compares received messages with the queue: next in order, or with a channel that was cut
// off, any later one.
func (m *model) receive(p *modelPair, side int) {
	b, ok := m.cores[side].Receive(p.ends[side])
	if !ok {
		return
	}
	id, q := m.check(b), p.queue[1-side]
	for p.wild && len(q) > 0 && q[0] != id {
		q = q[1:]
	}
	if len(q) == 0 || q[0] != id {
		m.t.Fatalf("message %d arrived where %v belong", id, q)
	}
	p.queue[1-side] = q[1:]
}

// settle lets everything arrive and be read, then ends all channels.
func (m *model) settle() {
	for range 5000 {
		m.step()
		for side := range 2 {
			m.accept(side)
			for _, p := range m.pairs {
				if p.known[side] {
					m.receive(p, side)
				}
			}
		}
		if m.quiet() {
			break
		}
	}
	for _, p := range m.pairs {
		for side := range 2 {
			if !p.wild && len(p.queue[side]) > 0 {
				m.t.Errorf("messages %v never arrived", p.queue[side])
			}
			if p.known[side] {
				m.cores[side].Close(p.ends[side])
			}
		}
	}
	for range 2000 {
		m.step()
	}
	for side, c := range m.cores {
		if ch, buffered, assembly := c.Held(); ch != 0 || buffered != 0 || assembly != 0 || c.Windows() != 0 {
			m.t.Errorf("side %d holds %d channels, %d bytes, %d reserved, windows of %d", side, ch, buffered, assembly, c.Windows())
		}
	}
}

func (m *model) step() {
	m.move(0)
	m.move(1)
}

func (m *model) quiet() bool {
	for _, p := range m.pairs {
		p.wild = p.wild || p.ends[p.opener].Refused()
		if !p.wild && (len(p.queue[0]) > 0 || len(p.queue[1]) > 0 || !p.known[0] || !p.known[1]) {
			return false
		}
	}
	return len(m.wire[0])+len(m.wire[1]) == 0
}

// cut loses the connection and the data on its way.
func (m *model) cut() {
	m.cuts++
	m.wire = [2][]byte{}
	if !mux.Cut(m.cores[0], m.cores[1]) {
		m.t.Fatal("not resumed")
	}
}

// run does steps things at random, and also each time.
func (m *model) run(steps int, also func()) {
	for range steps {
		side := m.r.IntN(2)
		switch n := m.r.IntN(20); {
		case n == 0 && len(m.pairs) < 40:
			m.open(side)
		case n == 1:
			m.accept(side)
		case n < 8:
			m.move(side)
		case len(m.pairs) > 0:
			if p := m.pairs[m.r.IntN(len(m.pairs))]; p.known[side] {
				m.act(p, side)
			}
		}
		also()
	}
}

// TestSmallMessagesPassLargeOnes: a small message waits for one frame of each competitor.
func TestSmallMessagesPassLargeOnes(t *testing.T) {
	client, _ := mux.NewCorePair(mux.Config{}, true)
	var large []mux.CoreChannel
	for range 4 {
		ch, err := client.Open(mux.PriorityNormal, 0)
		if err != nil {
			t.Fatal(err)
		}
		large = append(large, ch)
	}
	small, err := client.Open(mux.PriorityNormal, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range large {
		client.Send(ch, make([]byte, 1<<20))
	}
	client.Output() // the large ones are on their way
	marker := bytes.Repeat([]byte("small"), 4)
	client.Send(small, marker)
	wire := append(client.Output(), client.Output()...)
	wire = append(wire, client.Output()...)
	if at := bytes.Index(wire, marker); at < 0 || at > 5*(32<<10) {
		t.Errorf("the small message comes after %d bytes, want at most one frame of each other", at)
	}
}
