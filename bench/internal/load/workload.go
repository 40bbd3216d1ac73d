package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Workload is one kind of operation: a request, and how to find the end of its answer. Several generators may call its
// functions concurrently.
type Workload struct {
	// Request is sent for each operation, unless Next is set.
	Request []byte
	// Next appends a request to dst.
	Next func(dst []byte, r *rand.Rand) []byte
	// Whole returns the length of the complete answer at the beginning of b, 0 if more bytes must be read. The error
	// ErrLast accompanies a complete answer after which the server closes the connection.
	Whole func(b []byte) (int, error)
	// Fresh opens a connection for each operation, whose time includes the opening.
	Fresh bool
}

// ErrLast marks the last answer on a connection. The operation counts, and the next one opens a new connection.
var ErrLast = errors.New("the last answer on this connection")

// errAnswer is wrapped by the error of every wrong answer.
var errAnswer = errors.New("wrong answer")

// Echo sends n bytes and expects n back.
func Echo(n int) Workload {
	return Workload{Request: bytes.Repeat([]byte{'e'}, n), Whole: func(b []byte) (int, error) {
		if len(b) < n {
			return 0, nil
		}
		return n, nil
	}}
}

// Get requests a path over HTTP/1.1.
func Get(path string) Workload {
	return Workload{Request: []byte("GET " + path + " HTTP/1.1\r\nHost: bench.test\r\n\r\n"), Whole: wholeHTTP}
}

// Post sends a body of n bytes over HTTP/1.1.
func Post(path string, n int) Workload {
	return PostBody(path, "application/octet-stream", make([]byte, n))
}

// PostBody sends a body of the given type over HTTP/1.1.
func PostBody(path, contentType string, body []byte) Workload {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: bench.test\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", path, contentType, len(body))
	return Workload{Request: append([]byte(head), body...), Whole: wholeHTTP}
}

// PerConnection makes each operation of w open its own connection. HTTP requests then have Connection: close.
func PerConnection(w Workload) Workload {
	w.Fresh = true
	w.Request = bytes.Replace(w.Request, []byte("\r\n\r\n"), []byte("\r\nConnection: close\r\n\r\n"), 1)
	return w
}

// maxHead bounds the head of an answer. Backends send a few hundred bytes.
const maxHead = 16 << 10

// wholeHTTP requires a status from 200 to 299 and a Content-Length.
func wholeHTTP(b []byte) (int, error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) > maxHead {
			return 0, fmt.Errorf("%w: a head of more than %d bytes", errAnswer, maxHead)
		}
		return 0, nil
	}
	head := b[:end+2]
	if len(head) < 12 || head[9] != '2' {
		return 0, fmt.Errorf("%w: %q", errAnswer, head[:min(len(head), 80)])
	}
	n, err := strconv.Atoi(field(head, "content-length:"))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: no Content-Length: %q", errAnswer, head)
	}
	switch {
	case len(b) < end+4+n:
		return 0, nil
	case strings.EqualFold(field(head, "connection:"), "close"):
		return end + 4 + n, ErrLast
	}
	return end + 4 + n, nil
}

// field finds a field in a head, whose lines end in CRLF.
func field(head []byte, name string) string {
	for len(head) > 0 {
		line, rest, _ := bytes.Cut(head, []byte("\r\n"))
		if len(line) >= len(name) && strings.EqualFold(string(line[:len(name)]), name) {
			return string(bytes.TrimSpace(line[len(name):]))
		}
		head = rest
	}
	return ""
}

// Query sends text as a PostgreSQL simple query.
func Query(text string) Workload {
	return Workload{Request: appendQuery(nil, text), Whole: wholeQuery}
}

// LookUp is the transaction of pgbench -S on a table of rows accounts.
func LookUp(rows int) Workload {
	return Workload{Next: func(dst []byte, r *rand.Rand) []byte {
		return appendQuery(dst, "SELECT abalance FROM pgbench_accounts WHERE aid = "+strconv.Itoa(1+r.IntN(rows))+";")
	}, Whole: wholeQuery}
}

// CallLookUp is LookUp by a function that takes the key.
func CallLookUp(function string, rows int) Workload {
	return Workload{Next: func(dst []byte, r *rand.Rand) []byte {
		return appendQuery(dst, "SELECT "+function+"("+strconv.Itoa(1+r.IntN(rows))+");")
	}, Whole: wholeQuery}
}

// PreparedLookUp is LookUp with a prepared statement, see Prepare.
func PreparedLookUp(rows int) Workload {
	return Workload{Next: func(dst []byte, r *rand.Rand) []byte {
		key := strconv.Itoa(1 + r.IntN(rows))
		dst = append(dst, 'B')
		dst = binary.BigEndian.AppendUint32(dst, uint32(4+len("\x00lookup\x00")+2+2+4+len(key)+2))
		dst = append(dst, "\x00lookup\x00"+"\x00\x00"+"\x00\x01"...) // unnamed portal, text format, one parameter
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(key)))
		dst = append(dst, key...)
		dst = append(dst, 0, 0) // all results as text
		return append(dst, "E\x00\x00\x00\x09\x00\x00\x00\x00\x00"+"S\x00\x00\x00\x04"...)
	}, Whole: wholeQuery}
}

// Prepare makes the statement of PreparedLookUp on a connection that has logged in.
func Prepare(c io.ReadWriter) error {
	const text = "\x00SELECT abalance FROM pgbench_accounts WHERE aid = $1\x00"
	parse := append([]byte{'P'}, binary.BigEndian.AppendUint32(nil, uint32(4+len("lookup")+len(text)+2))...)
	parse = append(parse, "lookup"+text+"\x00\x00"+"S\x00\x00\x00\x04"...)
	if _, err := c.Write(parse); err != nil {
		return err
	}
	var answer []byte
	for piece := make([]byte, 512); ; {
		n, err := c.Read(piece)
		if err != nil {
			return err
		}
		answer = append(answer, piece[:n]...)
		if n, err := wholeQuery(answer); n > 0 || err != nil {
			return err
		}
	}
}

func appendQuery(dst []byte, text string) []byte {
	dst = append(dst, 'Q')
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(text)+1))
	dst = append(dst, text...)
	return append(dst, 0)
}

// wholeQuery finds ReadyForQuery.
func wholeQuery(b []byte) (int, error) {
	n := 0
	for len(b)-n >= 5 {
		size := 1 + int(binary.BigEndian.Uint32(b[n+1:]))
		if size < 5 || size > 1<<24 {
			return 0, fmt.Errorf("%w: a message of %d bytes", errAnswer, size)
		}
		if b[n] == 'E' {
			return 0, fmt.Errorf("%w: %q", errAnswer, b[n+5:min(n+size, len(b))])
		}
		if len(b)-n < size {
			return 0, nil
		}
		if n += size; b[n-size] == 'Z' {
			return n, nil
		}
	}
	return 0, nil
}

// Mixed is nine LookUps for each update by key.
func Mixed(rows int) Workload {
	w := LookUp(rows)
	look := w.Next
	w.Next = func(dst []byte, r *rand.Rand) []byte {
		if r.IntN(10) > 0 {
			return look(dst, r)
		}
		return appendQuery(dst, "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = "+strconv.Itoa(1+r.IntN(rows))+";")
	}
	return w
}
