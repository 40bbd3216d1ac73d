package httpproxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// Ways in which a server and a client go wrong; "" is none. What a request asks for is in its path: /FAULT/TAG.
var (
	serverFaults = []string{"", "", "", "nothing", "head", "half", "cut", "chunk", "surplus", "early", "refuse", "closes", "interim", "late"}
	clientFaults = []string{"", "", "", "gone", "leaves", "fails", "raw half", "raw chunk", "raw garbage", "raw pipeline"}
)

// tagged are n bytes that only this tag has.
func tagged(tag string, n int) string { return strings.Repeat(tag, n/len(tag)+1)[:n] }

// taggedServer answers a request with bytes of its tag, or goes wrong, and reports bodies with bytes of another tag.
type taggedServer struct{ t *testing.T }

func (s taggedServer) serve(c net.Conn) {
	for br := bufio.NewReader(c); ; {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, path, _ := strings.Cut(r.URL.Path, "/")
		fault, tag, _ := strings.Cut(path, "/")
		n, err := strconv.Atoi(r.URL.RawQuery)
		if err != nil || r.Header.Get("X-Tag") != tag {
			s.t.Errorf("the head of %s has the tag %q", r.URL, r.Header.Get("X-Tag"))
			return
		}
		if fault == "refuse" {
			_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
			_ = c.(*net.TCPConn).SetLinger(0)
			return
		}
		if fault != "early" {
			body, err := io.ReadAll(r.Body)
			if string(body) != tagged(tag, len(body)) {
				s.t.Errorf("the body of %s is %.80q", r.URL, body)
			}
			if err != nil {
				return
			}
		}
		if !s.answer(c, fault, tagged(tag, n)) {
			return
		}
	}
}

// answer reports whether the connection serves on.
func (s taggedServer) answer(c net.Conn, fault, body string) bool {
	whole := okWith(strings.NewReader(body))
	head := strings.Index(whole, "\r\n\r\n") + 4
	chunks := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(body), body)
	text, on := "", false
	switch fault {
	case "nothing":
	case "head":
		text = whole[:head/2]
	case "half", "cut":
		text = whole[:head+len(body)/2]
	case "chunk":
		text = chunks + "zz\r\nevil"
	case "surplus": // in one piece with a small answer: nobody can tell later bytes from an answer
		text, on = okWith(strings.NewReader(body[:min(len(body), 1000)]))+okWith(strings.NewReader("evil")), true
	case "interim":
		text = "HTTP/1.1 103 Early Hints\r\n\r\n"
	case "early", "closes":
		text = whole
	case "late":
		<-time.After(20 * time.Millisecond)
		text, on = whole, true
	default:
		text, on = whole, true
		if len(body)%2 == 0 {
			text = chunks + "0\r\n\r\n"
		}
	}
	_, err := io.WriteString(c, text)
	if fault == "cut" {
		_ = c.(*net.TCPConn).SetLinger(0)
	}
	return on && err == nil
}

// errHalfSent ends the body of a client that goes wrong.
var errHalfSent = errors.New("half of a body")

// failingAfter is a body that ends with an error.
type failingAfter struct{ io.Reader }

func (f failingAfter) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if err == io.EOF {
		err = errHalfSent
	}
	return n, err
}

// taggedRequest is a request of a client that may go wrong.
type taggedRequest struct {
	proto, method, server, client, tag string
	up, down                           int // bytes of the bodies
	moment                             time.Duration
}

func (q taggedRequest) path() string { return fmt.Sprintf("/%s/%s?%d", q.server, q.tag, q.down) }

// send reports whether the answer was whole. An error is errCrossed, if a byte was not the request's own.
func (q taggedRequest) send(t *testing.T, p running, client *http.Client) (whole bool, err error) {
	if strings.HasPrefix(q.client, "raw ") {
		return false, q.sendRaw(t, p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var body io.Reader
	if q.up > 0 {
		if body = strings.NewReader(tagged(q.tag, q.up)); q.up%2 == 0 {
			body = io.MultiReader(body) // without a length
		}
	}
	switch q.client {
	case "gone": // at any time
		defer time.AfterFunc(q.moment, cancel).Stop()
	case "fails":
		body = failingAfter{strings.NewReader(tagged(q.tag, q.up))}
	}
	r, _ := http.NewRequestWithContext(ctx, q.method, p.url+q.path(), body)
	r.Header.Set("X-Tag", q.tag)
	resp, err := client.Do(r)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	return q.read(resp, q.client == "leaves")
}

// read checks an answer, or the first half of one.
func (q taggedRequest) read(resp *http.Response, half bool) (whole bool, err error) {
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, resp.Body)
		return false, errors.New(resp.Status)
	}
	from := io.Reader(resp.Body)
	if half {
		from = io.LimitReader(from, int64(q.down/2))
	}
	body, err := io.ReadAll(from)
	if string(body) != tagged(q.tag, len(body)) {
		return false, fmt.Errorf("%w: %s got %.80q", errCrossed, q.path(), body)
	}
	return err == nil && !half && (len(body) == q.down || q.server == "surplus"), err
}

// sendRaw sends what no library sends, and checks all answers to it.
func (q taggedRequest) sendRaw(t *testing.T, p running) error {
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	head, body := "POST "+q.path()+" HTTP/1.1\r\nHost: a\r\nX-Tag: "+q.tag+"\r\n", tagged(q.tag, q.up+1)
	text := head + framed("length", []byte(body))
	switch q.client {
	case "raw half":
		text = text[:len(text)-len(body)/2]
		_ = c.(*net.TCPConn).SetLinger(0)
		_, err := io.WriteString(c, text)
		return err
	case "raw chunk":
		text = head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n-1\r\nevil", len(body), body)
	case "raw garbage":
		text += "evil\r\n\r\n"
	case "raw pipeline":
		text += strings.Replace(text, "POST", "PUT", 1) + "evil\r\n\r\n"
	}
	go func() { _, _ = io.WriteString(c, text) }() // the answer may come before it has been read
	for br := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return err
		}
		if _, err := q.read(resp, false); errors.Is(err, errCrossed) {
			return err
		}
	}
}

// TestTaggedBodiesStayApart: two clients share two connections to a server, and all three go wrong in every way. No byte of one client's
// requests or answers ever reaches the other, and a GET with which nothing goes wrong is always answered whole.
func TestTaggedBodiesStayApart(t *testing.T) {
	const requests = 120
	for _, protos := range [][]string{{"HTTP/1.1", "HTTP/1.1"}, {"HTTP/1.1", "HTTP/2.0"}, {"HTTP/2.0", "HTTP/2.0"}} {
		t.Run(strings.Join(protos, " "), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %#x", seed)
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 2, AcquireTimeout: patience}}}, serveRaw(t, taggedServer{t}.serve))
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u}, {Path: "/late", Upstream: u, ResponseTimeout: 10 * time.Millisecond}}})
			var clients sync.WaitGroup
			var whole atomic.Int64
			for i, proto := range protos {
				clients.Go(func() {
					random, client := rand.New(rand.NewPCG(seed, uint64(i))), clientFor(t, proto)
					for n := range requests {
						q := taggedRequest{
							proto: proto, method: "POST", tag: fmt.Sprintf("%c%d.", 'A'+i, n), moment: time.Duration(random.IntN(2000)) * time.Microsecond,
							server: serverFaults[random.IntN(len(serverFaults))], client: clientFaults[random.IntN(len(clientFaults))],
							up: random.IntN(1 << random.IntN(18)), down: 1 + random.IntN(1<<random.IntN(18)),
						}
						if random.IntN(2) == 0 && !slices.Contains([]string{"fails", "raw half"}, q.client) {
							q.method, q.up = "GET", 0
						}
						ok, err := q.send(t, p, client)
						if ok {
							whole.Add(1)
						}
						if errors.Is(err, errCrossed) || !ok && q.method == "GET" && q.server+q.client == "" {
							t.Errorf("%+v: whole: %t, %v", q, ok, err)
						}
					}
				})
			}
			clients.Wait()
			if n := whole.Load(); n < requests/10 {
				t.Errorf("%d of %d answers were whole", n, 2*requests)
			}
			wantNoLease(t, u)
		})
	}
}
