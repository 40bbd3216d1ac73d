package httpproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
)

// taggedBackend answers with the request's tag and body, and fails as X-Do says.
func taggedBackend(c net.Conn) {
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		tag, do := r.Header.Get("X-Tag"), r.Header.Get("X-Do")
		if do == "upgrade" {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n%s ", tag)
			_, _ = io.Copy(c, br)
			return
		}
		if do == "gone" {
			return
		}
		if r.Header.Get("Expect") != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		answer := fmt.Sprintf("from %s, %s %s %s %s", r.Header.Get("X-Forwarded-For"), tag, r.URL.Path, r.Header.Get("X-Request-Id"), body)
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Tag: %s\r\n", tag)
		switch do {
		case "cut":
			_, _ = fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", head, len(answer)+100, answer)
			return
		case "cut head":
			_, _ = io.WriteString(c, head)
			return
		case "chunked":
			_, _ = fmt.Fprintf(c, "%sTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n%x\r\n%s\r\n0\r\nX-End: %s\r\n\r\n", head, len(answer), answer, tag)
		case "cut chunk":
			_, _ = fmt.Fprintf(c, "%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", head, len(answer)+5, answer)
			return
		default:
			_, _ = fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", head, len(answer), answer)
		}
	}
}

// A misuse is what a client sends, with its tag for TAG, and how it goes on.
type misuse struct {
	send  string
	then  string // "read" the answer to its end, "half" = end the stream before, "reset", "close"
	after string // sent after the first bytes of the answer
}

const taggedHead = " /TAG HTTP/1.1\r\nHost: TAG.example\r\nUser-Agent: TAG\r\nX-Tag: TAG\r\nX-Request-Id: TAG\r\nCookie: c=TAG\r\n"

func misuses() []misuse {
	get, post := "GET"+taggedHead, "POST"+taggedHead
	closes := "Connection: close\r\n\r\n"
	all := []misuse{
		{get + "\r\n" + get + closes, "read", ""},
		{get + "\r\n", "half", ""},
		{"GET /rest" + taggedHead[1:] + closes, "read", ""},
		{post + "Content-Length: 3\r\n" + closes + "TAG"[:3], "read", ""},
		{post + "Content-Length: 300\r\n\r\npart TAG", "half", ""},
		{post + "Content-Length: 300\r\n\r\npart TAG", "close", ""},
		{post + "Content-Length: 100000\r\n" + closes, "read", ""}, // 413
		{post + "Transfer-Encoding: chunked\r\n" + closes + "5\r\nhello\r\n0\r\nX-Trail: TAG\r\n\r\n", "read", ""},
		{post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXY", "read", ""},
		{post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel", "reset", ""},
		{post + "Expect: 100-continue\r\nContent-Length: 5\r\n" + closes, "read", "hello"},
		{post + "Expect: 100-continue\r\nContent-Length: 5\r\n" + closes, "half", ""},
		{post + "Expect: 200-ok\r\nContent-Length: 5\r\n" + closes, "read", ""},
		{get, "half", ""}, {get, "reset", ""}, {get, "close", ""}, {get, "read", ""}, // the last: 408
		{get + "bad field\r\n\r\n", "read", ""},
		{get + "X-Large: " + strings.Repeat("TAG", 30000) + "\r\n\r\n", "read", ""},
		{get + "Connection: Upgrade\r\nUpgrade: x\r\nX-Do: upgrade\r\n\r\nTAG", "half", ""},
		{get + "Connection: Upgrade\r\nUpgrade: x\r\nX-Do: upgrade\r\n\r\nTAG", "reset", ""},
		{get + "Connection: Upgrade\r\nUpgrade: x\r\n" + closes, "read", ""},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "close", ""},
		{"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "read", ""},
		{"\x16\x03\x01\x02\x00\x01\x00", "half", ""},
		{"", "close", ""}, {"", "half", ""}, {"\r\n", "half", ""},
		{get + "\r\n" + get, "half", ""},
		{"GET /bomb" + taggedHead[1:] + closes, "read", ""},
		{"POST /bomb" + taggedHead[1:] + "Content-Length: 300\r\n\r\npart", "half", ""},
	}
	for _, do := range []string{"gone", "cut", "cut head", "chunked", "cut chunk"} {
		for _, then := range []string{"read", "reset"} {
			all = append(all, misuse{get + "X-Do: " + do + "\r\n" + closes, then, ""})
			all = append(all, misuse{post + "X-Do: " + do + "\r\nTransfer-Encoding: chunked\r\n" + closes + "3\r\nabc\r\n0\r\n\r\n", then, ""})
		}
	}
	return all
}

// run is one connection; it returns what came.
func (m misuse) run(addr, from, tag string) (string, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	nc, err := dialer.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, strings.ReplaceAll(m.send, "TAG", tag))
	switch m.then {
	case "reset":
		return "", c.SetLinger(0)
	case "close":
		return "", nil
	case "half":
		_ = c.CloseWrite()
	}
	var got bytes.Buffer
	if m.after != "" {
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		got.Write(b[:n])
		_, _ = io.WriteString(c, m.after)
	}
	_, err = io.Copy(&got, c)
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return got.String(), fmt.Errorf("no end after %q: %w", m.send[:min(len(m.send), 300)], err)
	}
	return got.String(), nil
}

// panicking panics when a request for /bomb is written.
type panicking struct{ net.Conn }

func (c panicking) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("/bomb")) {
		panic("bomb")
	}
	return c.Conn.Write(p)
}

// TestReusedSessionsKeepNothing: sessions are reused, and whatever the client before has done, the next one finds
// nothing of it in its answer, its line in the log and its entry in the register.
func TestReusedSessionsKeepNothing(t *testing.T) {
	backend := serveRaw(t, taggedBackend)
	bombs := newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := enginetest.Dial(ctx, endpoint)
		return panicking{c}, err
	}}, backend)
	lines := &logLines{t: t}
	cfg := httpproxy.Config{
		Routes:            []httpproxy.Route{{Upstream: newUpstream(t, backend), MaxBody: 50000}, {Path: "/bomb", PathMatch: httpproxy.PathPrefix, Upstream: bombs}},
		ReadHeaderTimeout: 300 * time.Millisecond,
		AccessLog:         &httpproxy.AccessLog{To: lines, Format: "{path} {user_agent} {request_id} {host} END"},
	}
	p := startProxy(t, cfg)
	tags := regexp.MustCompile(`(?:red|blue)[0-9]+x`)
	one := func(what, text string) (tag string) {
		for _, found := range tags.FindAllString(text, -1) {
			if tag != "" && found != tag {
				t.Errorf("%s mixes %s and %s: %.500q", what, tag, found, text)
			}
			tag = found
		}
		return tag
	}
	var clients, watcher sync.WaitGroup
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	watcher.Go(func() {
		for watching.Err() == nil {
			for _, info := range p.Sessions() {
				b, _ := json.Marshal(info)
				one("the register", string(b))
			}
		}
	})
	all, rounds := misuses(), 4
	for name, from := range map[string]string{"red": "127.0.0.1", "blue": "127.0.0.2"} {
		for worker := range 8 {
			clients.Go(func() {
				for i := range rounds * len(all) {
					m := all[(i*7+worker*5)%len(all)]
					tag := fmt.Sprintf("%s%dx", name, worker*1_000_000+i)
					got, err := m.run(p.addr, from, tag)
					if err != nil {
						t.Error(err)
					}
					if _, said, ok := strings.Cut(got, "from 127."); ok && !strings.HasPrefix("127."+said, from+",") {
						t.Errorf("%s, of %s, passed for another client: %.500q", tag, from, got)
					}
					if found := one("an answer", got); found != "" && found != tag {
						t.Errorf("%s got the answer of %s: %.500q", tag, found, got)
					}
				}
			})
		}
	}
	clients.Wait()
	eventually(t, "all connections end", func() bool { return len(p.Sessions()) == 0 })
	stop()
	watcher.Wait()
	lines.mu.Lock()
	defer lines.mu.Unlock()
	tagged := 0
	for _, line := range lines.all {
		if tag := one("a line", line); tag != "" && strings.Count(line, tag) >= 3 {
			tagged++ // its path, user agent and request ID
		}
	}
	if tagged < rounds*len(all) {
		t.Errorf("%d of %d lines name their client", tagged, len(lines.all))
	}
}
