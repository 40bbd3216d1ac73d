package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Errors of a Link.
var (
	ErrClosed   = errors.New("link: closed")
	ErrRefused  = errors.New("link: the other process refuses")
	ErrTooLarge = errors.New("link: too large")
	ErrUnknown  = errors.New("unknown request") // a Handler's error for a request that it does not know
	errGarbage  = errors.New("link: the other process sends something else than messages")
)

// maxAtOnce is how many requests of the other side are worked on at the same time. Processes ask little: what clients
// cause is bounded by the asker.
const maxAtOnce = 64

// writePatience bounds the time to write an answer, once it is its turn: the other side may hang.
const writePatience = 2 * time.Second

// Handler answers a request of the other side. body is valid JSON, or empty. file, which may be nil, goes with the answer
// and is closed. An error refuses the request; it wraps ErrUnknown if there is no such request. Handlers run on goroutines
// of their own, several at once. ctx ends when the asker does not wait any more, and with the link.
type Handler func(ctx context.Context, ask string, body json.RawMessage) (answer any, file *os.File, err error)

// Link is one end of a link. All methods are safe for concurrent use.
type Link struct {
	conn   *net.UnixConn
	handle Handler
	life   context.Context // ends with the link
	end    context.CancelCauseFunc
	work   sync.WaitGroup // the reader and the handlers

	writing chan struct{} // has an element while somebody writes; not a mutex, because waiting for it is bounded
	atOnce  chan struct{} // has an element for each running Handler

	mu      sync.Mutex
	lastID  uint64
	waiting map[uint64]chan<- incoming // by ID
}

// New returns a Link on an end of a Pair, which it takes over: also on an error the file is closed. handle gets the other
// side's requests.
func New(f *os.File, handle Handler) (*Link, error) {
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("link: %s is no Unix socket", f.Name())
	}
	l := &Link{
		conn: conn, handle: handle, writing: make(chan struct{}, 1), atOnce: make(chan struct{}, maxAtOnce), waiting: map[uint64]chan<- incoming{},
	}
	l.life, l.end = context.WithCancelCause(context.Background())
	l.work.Go(l.read)
	return l, nil
}

// Done returns a channel that is closed when the link has ended: by Close, or because the other process has closed it,
// has ended, or breaks the rules. Err says why then.
func (l *Link) Done() <-chan struct{} { return l.life.Done() }

// Err returns why the link has ended; it wraps ErrClosed or io.EOF if that is nobody's fault.
func (l *Link) Err() error { return context.Cause(l.life) }

// Close ends the link and waits for the handlers that run, whose contexts have ended.
func (l *Link) Close() {
	l.close(ErrClosed)
	l.work.Wait()
}

func (l *Link) close(why error) {
	l.end(why)
	_ = l.conn.Close()
}

// Call asks the other side and decodes its answer into answer, nil = nothing. ctx must have a deadline. The error wraps
// ErrRefused if the other side does not want to answer, or does not know what to.
func (l *Link) Call(ctx context.Context, ask string, body, answer any) error {
	f, err := l.CallFile(ctx, ask, body, answer)
	if f != nil {
		_ = f.Close()
	}
	return err
}

// CallFile is Call for an answer with a file, which is the caller's; nil: there is none.
func (l *Link) CallFile(ctx context.Context, ask string, body, answer any) (*os.File, error) {
	in, err := l.call(ctx, ask, body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("link: %s: %w", ask, err)
	case in.Refused != "":
		in.drop()
		return nil, fmt.Errorf("%w: %s: %.200s", ErrRefused, ask, in.Refused)
	case answer == nil:
		return in.file, nil
	}
	if err := json.Unmarshal(in.Body, answer); err != nil {
		in.drop()
		return nil, fmt.Errorf("link: answer to %s: %w", ask, err)
	}
	return in.file, nil
}

func (l *Link) call(ctx context.Context, ask string, body any) (incoming, error) {
	deadline, _ := ctx.Deadline()
	m := message{Ask: ask, Until: deadline.UnixMilli()}
	var err error
	if m.Body, err = json.Marshal(body); err != nil {
		return incoming{}, err
	}
	answered := make(chan incoming, 1)
	l.mu.Lock()
	l.lastID++
	m.ID = l.lastID
	l.waiting[m.ID] = answered
	l.mu.Unlock()
	defer l.forget(m.ID, answered)
	out, err := encode(kindRequest, &m)
	if err == nil {
		err = l.write(ctx, deadline, out, nil)
	}
	if err != nil {
		return incoming{}, err
	}
	select {
	case in := <-answered:
		return in, nil
	case <-ctx.Done():
		return incoming{}, ctx.Err()
	case <-l.life.Done():
		return incoming{}, l.Err()
	}
}

// forget ends the wait for an answer. One that has arrived, but was not received by the caller, is dropped.
func (l *Link) forget(id uint64, answered <-chan incoming) {
	l.mu.Lock()
	delete(l.waiting, id)
	l.mu.Unlock()
	select {
	case in := <-answered:
		in.drop()
	default:
	}
}

// write sends a message, with a file if it is not nil. It begins before ctx ends, or not at all. A message that was not
// written whole by the deadline, zero = after writePatience, ends the link.
func (l *Link) write(ctx context.Context, deadline time.Time, out []byte, file *os.File) error {
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	case <-ctx.Done():
		return ctx.Err()
	case <-l.life.Done():
		return l.Err()
	}
	if deadline.IsZero() {
		deadline = time.Now().Add(writePatience)
	}
	_ = l.conn.SetWriteDeadline(deadline)
	n, err := 0, error(nil)
	if file != nil {
		n, err = writeFile(l.conn, out[:headerSize], file)
	}
	if err == nil {
		_, err = l.conn.Write(out[n:])
	}
	if err != nil {
		l.close(err)
		return l.Err() // the link may have been closed before
	}
	return nil
}

// read is the goroutine that receives messages.
func (l *Link) read() {
	for {
		in, err := l.receive()
		if err != nil {
			l.close(err)
			return
		}
		if in.kind == kindAnswer {
			l.answer(in)
			continue
		}
		in.drop() // no request has a file
		select {
		case l.atOnce <- struct{}{}:
			l.work.Go(func() {
				defer func() { <-l.atOnce }()
				l.serve(&in.message)
			})
		case <-l.life.Done():
		}
	}
}

// receive reads one message.
func (l *Link) receive() (in incoming, err error) {
	var header [headerSize]byte
	in.file, err = readWithFile(l.conn, header[:])
	size := 0
	if err == nil {
		in.kind, size, err = decodeHeader(header)
	}
	var text bytes.Buffer // grows as the bytes arrive, whatever the header promises
	if err == nil {
		_, err = io.CopyN(&text, l.conn, int64(size))
	}
	if err == nil {
		if bad := json.Unmarshal(text.Bytes(), &in.message); bad != nil {
			err = fmt.Errorf("%w: %w", errGarbage, bad)
		}
	}
	if err != nil {
		in.drop()
	}
	return in, err
}

// answer passes an answer to the caller that waits for it.
func (l *Link) answer(in incoming) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.waiting[in.ID]
	delete(l.waiting, in.ID)
	if to == nil {
		in.drop() // it comes too late
		return
	}
	to <- in // has room for one, and gets no other
}

// serve answers a request.
func (l *Link) serve(m *message) {
	ctx, cancel := context.WithTimeout(l.life, min(time.Until(time.UnixMilli(m.Until)), maxWithin))
	defer cancel()
	var answer any
	var file *os.File
	err := ctx.Err()
	if err == nil {
		answer, file, err = l.handle(ctx, m.Ask, m.Body)
	}
	if file != nil {
		defer func() { _ = file.Close() }()
	}
	reply := message{ID: m.ID}
	if err == nil {
		reply.Body, err = json.Marshal(answer)
	}
	var out []byte
	if err == nil {
		out, err = encode(kindAnswer, &reply)
	}
	if err == nil {
		err = ctx.Err() // nobody waits any more for an answer that may be large
	}
	if err != nil {
		file = nil
		out, _ = encode(kindAnswer, &message{ID: m.ID, Refused: clip(err.Error())}) // no error: it is small
	}
	turn, stop := context.WithTimeout(l.life, writePatience)
	defer stop()
	_ = l.write(turn, time.Time{}, out, file) // an error ends the link, or there were many others to write before
}

// clip bounds a text, in bytes.
func clip(text string) string { return text[:min(len(text), 1000)] }
