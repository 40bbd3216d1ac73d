//go:build unix

package link_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/link"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// pair returns a link and the raw other end.
func pair(t *testing.T, handle link.Handler) (*link.Link, *os.File) {
	t.Helper()
	one, other, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	return open(t, one, handle), other
}

func open(t *testing.T, f *os.File, handle link.Handler) *link.Link {
	t.Helper()
	l, err := link.New(f, handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// within is a context for requests that are answered.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), conntest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func refuse(context.Context, string, json.RawMessage) (any, *os.File, error) {
	return nil, nil, link.ErrUnknown
}

// greet answers "greet" with a greeting, and "file" with the name and content of a file.
func greet(_ context.Context, ask string, body json.RawMessage) (any, *os.File, error) {
	var name string
	if err := json.Unmarshal(body, &name); err != nil {
		return nil, nil, err
	}
	switch ask {
	case "greet":
		return "hello " + name, nil, nil
	case "file":
		r, w, err := os.Pipe()
		if err == nil {
			_, err = io.WriteString(w, name)
			_ = w.Close()
		}
		return "read it", r, err
	}
	return nil, nil, link.ErrUnknown
}

// TestBothSidesAsk: each side answers the other's requests, many at once, and refuses those that it does not know.
func TestBothSidesAsk(t *testing.T) {
	one, other, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	ends := []*link.Link{open(t, one, greet), open(t, other, greet)}
	ctx := within(t)
	results := make(chan error)
	const each = 100
	for i := range each {
		for _, l := range ends {
			go func() {
				name, answer := fmt.Sprint(i), ""
				err := l.Call(ctx, "greet", name, &answer)
				if err == nil && answer != "hello "+name {
					err = fmt.Errorf("answer %q to %s", answer, name)
				}
				results <- err
			}()
		}
	}
	for range each * len(ends) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if err := ends[0].Call(ctx, "dance", "x", nil); !errors.Is(err, link.ErrRefused) || !strings.Contains(err.Error(), "unknown request") {
		t.Errorf("an unknown request: %v", err)
	}
	if err := ends[0].Call(ctx, "greet", 7, nil); !errors.Is(err, link.ErrRefused) {
		t.Errorf("a request with a wrong body: %v", err)
	}
	if err := ends[0].Call(ctx, "greet", strings.Repeat("x", 5<<20), nil); !errors.Is(err, link.ErrTooLarge) {
		t.Errorf("a huge request: %v", err)
	}
	var answer int
	if err := ends[0].Call(ctx, "greet", "x", &answer); err == nil {
		t.Error("an answer of another type was accepted")
	}
}

// TestFiles: a descriptor that comes with an answer is the asker's, and no program that it starts inherits it.
func TestFiles(t *testing.T) {
	one, other, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{one, other} {
		notInherited(t, f)
	}
	l := open(t, one, refuse)
	open(t, other, greet)
	for range 10 {
		var said string
		f, err := l.CallFile(within(t), "file", "content", &said)
		if err != nil || f == nil || said != "read it" {
			t.Fatal(f, said, err)
		}
		notInherited(t, f)
		if text, err := io.ReadAll(f); err != nil || string(text) != "content" {
			t.Errorf("%q %v", text, err)
		}
		_ = f.Close()
		if err := l.Call(within(t), "file", "closed by Call", &said); err != nil {
			t.Error(err)
		}
	}
}

// notInherited fails the test if programs inherit a file.
func notInherited(t *testing.T, f *os.File) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if flags, _, no := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFD, 0); no != 0 || flags&syscall.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d of %s is inherited: flags %d, %v", fd, f.Name(), flags, no)
		}
	})
}

// TestHungProcess: a side that neither reads nor answers delays a caller no longer than the caller wants.
func TestHungProcess(t *testing.T) {
	l, _ := pair(t, refuse)
	large := strings.Repeat("x", 1<<20)
	for _, body := range []string{"small", large, large} { // the large ones fill the socket
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := l.Call(ctx, "greet", body, nil); err == nil {
			t.Error("an answer from nobody")
		}
		cancel()
	}
}

// TestOtherProcessEnds: those who wait for an answer of a process that ends get an error at once.
func TestOtherProcessEnds(t *testing.T) {
	l, other := pair(t, refuse)
	go func() {
		_, _ = other.Read(make([]byte, 1)) // the request
		_ = other.Close()
	}()
	if err := l.Call(within(t), "greet", "x", nil); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	<-l.Done()
}

// TestGarbage: whatever else than messages the other side sends ends the link, and only that.
func TestGarbage(t *testing.T) {
	header := func(kind byte, size uint32) []byte { return binary.BigEndian.AppendUint32([]byte{kind}, size) }
	for name, text := range map[string][]byte{
		"another protocol":   []byte("GET / HTTP/1.1\r\n\r\n"),
		"unknown kind":       append(header('x', 2), "{}"...),
		"too long a request": header('q', 5<<20),
		"too long an answer": header('a', 17<<20),
		"longest length":     header('a', 1<<32-1),
		"no JSON":            append(header('q', 3), "{]}"...),
		"no object":          append(header('a', 2), "17"...),
		"wrong types":        append(header('q', 12), `{"id":"one"}`...),
		"cut off":            append(header('a', 100), "{"...),
	} {
		l, other := pair(t, refuse)
		if _, err := other.Write(text); err != nil {
			t.Fatal(err)
		}
		if name == "cut off" {
			_ = other.Close()
		}
		select {
		case <-l.Done():
		case <-time.After(conntest.Patience):
			t.Errorf("%s: the link goes on", name)
		}
	}
}

// TestTolerance: members that a newer version adds, answers that nobody waits for, and files that nobody wants are
// ignored.
func TestTolerance(t *testing.T) {
	l, other := pair(t, greet)
	c, err := net.FileConn(other)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	send := func(kind byte, text string, fds ...int) {
		t.Helper()
		out := append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(text))), text...)
		if _, _, err := c.(*net.UnixConn).WriteMsgUnix(out, syscall.UnixRights(fds...), nil); err != nil {
			t.Fatal(err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	fd := int(null.Fd())
	send('a', `{"id":77,"body":"late","later":{"x":1}}`, fd)
	send('q', `{"id":1,"ask":"dance","until":99999999999999,"body":"x"}`, fd, fd, fd)
	send('q', `{"id":2,"ask":"greet","until":99999999999999,"later":[1],"body":"you"}`)
	_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
	for want := map[string]bool{`{"id":1,"refused":"unknown request"}`: true, `{"id":2,"body":"hello you"}`: true}; len(want) > 0; {
		var h [5]byte
		if _, err := io.ReadFull(c, h[:]); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, binary.BigEndian.Uint32(h[1:]))
		if _, err := io.ReadFull(c, text); err != nil || !want[string(text)] {
			t.Fatalf("%s %v", text, err)
		}
		delete(want, string(text))
	}
	if err := l.Err(); err != nil {
		t.Error(err)
	}
}

// TestCloseEndsHandlers: Close returns when the handlers have, and their contexts end.
func TestCloseEndsHandlers(t *testing.T) {
	one, other, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), false
	l := open(t, one, func(ctx context.Context, _ string, _ json.RawMessage) (any, *os.File, error) {
		close(begun)
		<-ctx.Done()
		ended = true
		return nil, nil, ctx.Err()
	})
	asker := open(t, other, refuse)
	failed := make(chan error, 1)
	go func() { failed <- asker.Call(within(t), "wait", nil, nil) }()
	<-begun
	l.Close()
	if !ended {
		t.Error("Close did not wait for the handler")
	}
	if err := <-failed; err == nil {
		t.Error("a request was answered by a closed link")
	}
	if err := l.Call(within(t), "greet", "x", nil); !errors.Is(err, link.ErrClosed) {
		t.Errorf("Call of a closed link: %v", err)
	}
}

// TestRequestEndsWithItsAsker: the other side does not work on longer than the asker waits.
func TestRequestEndsWithItsAsker(t *testing.T) {
	one, other, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 100)
	open(t, one, func(ctx context.Context, _ string, _ json.RawMessage) (any, *os.File, error) {
		<-ctx.Done()
		ended <- struct{}{}
		return nil, nil, ctx.Err()
	})
	asker := open(t, other, refuse)
	for wait := time.Millisecond; ; wait *= 2 { // one that comes too late is not worked on at all
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		if err := asker.Call(ctx, "wait", nil, nil); err == nil {
			t.Error("an answer")
		}
		cancel()
		select {
		case <-ended:
			return
		case <-time.After(wait):
		}
	}
}

// TestTooLate: a request is refused when its asker has given up, as those that have waited for a process that hung.
func TestTooLate(t *testing.T) {
	_, other := pair(t, func(context.Context, string, json.RawMessage) (any, *os.File, error) {
		t.Error("it was worked on")
		return nil, nil, nil
	})
	text := fmt.Sprintf(`{"id":1,"ask":"kill","until":%d}`, time.Now().Add(-time.Millisecond).UnixMilli())
	if _, err := other.Write(append(binary.BigEndian.AppendUint32([]byte{'q'}, uint32(len(text))), text...)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	if n, err := other.Read(answer); err != nil || !strings.Contains(string(answer[:n]), "refused") {
		t.Errorf("%s %v", answer[:n], err)
	}
}

func TestNoSocket(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := link.New(null, refuse); err == nil {
		t.Error("a link on /dev/null")
	}
}
