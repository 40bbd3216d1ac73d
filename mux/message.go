package mux

import "fmt"

// Message is one message received. Its buffer is borrowed: the receiver
// calls [Message.Release] once when done, and once more for each [Message.Retain].
// A missing Release only leaves the buffer to the garbage collector; releasing too
// often panics.
//
// The zero Message is an empty one; releasing it does nothing.
type Message struct {
	b   *buffer
	gen uint32
}

// Bytes is the message. It may be changed, and is valid until the last Release.
func (m Message) Bytes() []byte {
	if m.b == nil {
		return nil
	}
	m.check("Bytes")
	return m.b.data
}

// Len is the message's size in bytes.
func (m Message) Len() int { return len(m.Bytes()) }

// Retain adds a holder, which must call Release too, and returns m.
func (m Message) Retain() Message {
	if m.b != nil {
		m.check("Retain")
		m.b.refs.Add(1)
	}
	return m
}

// Release gives the buffer back when the last holder calls it.
func (m Message) Release() {
	if m.b != nil {
		m.check("Release")
		m.b.release()
	}
}

func (m Message) check(op string) {
	if m.b.gen != m.gen {
		panic(fmt.Sprintf("mux: Message.%s after its last Release", op))
	}
}
