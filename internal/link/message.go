package link

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// message is the JSON object of a request or an answer.
type message struct {
	// ID is chosen by the asker, for whom no two requests under way have the same. The answer has the request's.
	ID uint64 `json:"id"`
	// Ask is what a request wants.
	Ask string `json:"ask,omitempty"`
	// Until is when the asker stops to wait for the answer, in milliseconds since 1970 by the machine's clock: a process that
	// hung must not do later what was asked for before.
	Until int64 `json:"until,omitempty"`
	// Refused is why there is no answer; empty: Body is one.
	Refused string          `json:"refused,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// Kinds of messages.
const (
	kindRequest = 'q'
	kindAnswer  = 'a'
)

// headerSize is the size of the kind and the length of a message.
const headerSize = 5

// Limits of the JSON objects, in bytes. Requests are names and keys, or operators' changes of many endpoints. An answer
// may have thousands of sessions.
const (
	maxRequest = 4 << 20
	maxAnswer  = 16 << 20
)

// maxWithin bounds how long the other side may have a request worked on.
const maxWithin = 30 * time.Second

// limitOf returns the limit of a kind; 0 if there is no such kind.
func limitOf(kind byte) int {
	switch kind {
	case kindRequest:
		return maxRequest
	case kindAnswer:
		return maxAnswer
	}
	return 0
}

// encode returns a message as bytes.
func encode(kind byte, m *message) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(text) > limitOf(kind) {
		return nil, fmt.Errorf("%w: a message of %d bytes, more than %d", ErrTooLarge, len(text), limitOf(kind))
	}
	out := make([]byte, headerSize, headerSize+len(text))
	out[0] = kind
	binary.BigEndian.PutUint32(out[1:], uint32(len(text))) //nolint:gosec // bounded above
	return append(out, text...), nil
}

// decodeHeader returns the kind and the size of the message that follows a header.
func decodeHeader(h [headerSize]byte) (kind byte, size int, err error) {
	kind, n := h[0], binary.BigEndian.Uint32(h[1:])
	if limit := limitOf(kind); limit == 0 || uint64(n) > uint64(limit) {
		return 0, 0, fmt.Errorf("%w: kind %q, size %d", errGarbage, kind, n)
	}
	return kind, int(n), nil
}

// incoming is a message that has arrived; file is nil if none came with it.
type incoming struct {
	message
	kind byte
	file *os.File
}

// drop closes what comes with a message that nobody wants.
func (m *incoming) drop() {
	if m.file != nil {
		_ = m.file.Close()
	}
}
