package httpproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// combineHost is the host that clients ask for.
const combineHost = "combine.example"

// combineClient is a client, which one goroutine uses.
type combineClient struct {
	*combineRound
	rnd    *rand.Rand
	index  int
	coded  *http.Client
	before *combined // the last request of HTTP/1
	conn   net.Conn  // of HTTP/1; nil = none
	in     *bufio.Reader
}

// combineGot is what a client got.
type combineGot struct {
	status   int
	header   http.Header
	body     []byte // as it came, without chunks
	trailer  http.Header
	interims int
	err      error // the answer is not whole
	took     time.Duration
	nothing  bool // not even its head came
	closes   bool // it says that the connection ends
}

func newCombineClient(r *combineRound, i int, rnd *rand.Rand) *combineClient {
	client := &combineClient{combineRound: r, rnd: rnd, index: i, coded: clientFor(r.t, "HTTP/2.0")}
	tr := client.coded.Transport.(*http.Transport)
	tr.DisableCompression, tr.ExpectContinueTimeout = true, patience
	client.coded.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

func (k *combineClient) close() {
	k.drop()
	k.coded.CloseIdleConnections()
}

// drop ends the connection of HTTP/1.
func (k *combineClient) drop() {
	if k.conn != nil {
		_ = k.conn.Close()
		k.conn = nil
	}
}

// turn sends one request, or several behind each other.
func (k *combineClient) turn(tag string) {
	proto := pick(k.rnd, 10, 11, 11, 20, 20)
	all := []*combined{}
	for i := range pick(k.rnd, 1, 1, 1, 3) {
		c := k.request(fmt.Sprintf("%s-%d", tag, i), proto, i == 0)
		all = append(all, c)
		k.all.Store(c.tag, c)
		if proto != 11 || c.closes || c.expects || c.gives || c.upgrade != "" {
			break
		}
	}
	if proto != 20 {
		k.sendText(all)
		return
	}
	if all[0].upgrade != "" {
		k.settle(all[0], k.upgradeCoded(all[0]))
		return
	}
	k.settle(all[0], k.sendCoded(all[0]))
}

// request makes a request and what becomes of it at servers. Only a request that is alone may be given up.
func (k *combineClient) request(tag string, proto int, first bool) *combined {
	rnd := k.rnd
	route := pick(rnd, k.routes...)
	c := &combined{tag: tag, route: route, proto: proto}
	c.rest = pick(rnd, "", "/", "/a", "/a%20b/c;d", "/%C3%BC")
	c.query = pick(rnd, "", "?x=1", "?a=b&c=%2F")
	c.method = pick(rnd, "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE")
	if c.method == "POST" || c.method == "PUT" {
		c.addBody(rnd)
	}
	c.closes = one(rnd, 6)
	c.credential = pick(rnd, "right", "right", "right", "right", "wrong", "none", "down")
	c.origin = pick(rnd, "", "", combineOrigin, "https://other.example")
	c.accept = pick(rnd, "", "gzip", "zstd", "gzip, zstd", "gzip;q=1.0, zstd;q=0.5", "br", "*", "identity, gzip;q=0.5", "gzip;q=0")
	c.wantsJSON = one(rnd, 5)
	c.idempotent = one(rnd, 8)
	if route.limit > 0 {
		c.bucket = fmt.Sprintf("%d-%d", k.index, rnd.IntN(3))
	}
	if route.CORS != nil && len(c.body) == 0 && one(rnd, 5) {
		c.method, c.preflight, c.origin = http.MethodOptions, true, pick(rnd, combineOrigin, "https://other.example")
	}
	if c.gives = first && one(rnd, 25); c.gives {
		c.bucket = "of those who leave"
	}
	if proto == 20 && !c.preflight && one(rnd, 3) {
		c.addCall(rnd)
	}
	if first && !c.grpc && !c.gives && proto != 10 && route.own == "" && !c.preflight && one(rnd, 6) {
		c.addUpgrade(rnd)
	}
	for i := range 6 {
		c.tries = append(c.tries, newCombineTry(rnd, c, i == 5))
	}
	return c
}

func (c *combined) addBody(rnd *rand.Rand) {
	size := pick(rnd, 0, 1, 500, 2999, 3001, 9000, 20_000, 50_000)
	if c.route.big != nil && one(rnd, 2) {
		c.model = pick(rnd, "big", "small")
		size = max(size, 40)
		head := fmt.Sprintf(`{"model":"%s","pad":"%s`, c.model, c.tag)
		c.body = []byte(head + strings.Repeat("x", max(size-len(head)-2, 0)) + `"}`)
	} else {
		c.body = []byte(strings.Repeat(c.tag+"+", 1+size/len(c.tag))[:size])
	}
	c.chunked = c.proto > 10 && one(rnd, 2)
	c.trailers = c.chunked && one(rnd, 2)
	c.expects = c.proto > 10 && len(c.body) > 0 && one(rnd, 6)
}

// addCall makes it a call of gRPC.
func (c *combined) addCall(rnd *rand.Rand) {
	c.method = http.MethodPost
	c.addBody(rnd)
	c.model = ""
	c.grpc, c.chunked, c.trailers, c.expects, c.hasty, c.waits = true, true, false, false, one(rnd, 6), one(rnd, 6)
}

// newCombineTry is what a server does with a request.
func newCombineTry(rnd *rand.Rand, c *combined, last bool) combineTry {
	try := combineTry{
		status: pick(rnd, 200, 200, 200, 200, 201, 204, 206, 304, 404, 500, 502, 503, 503), size: pick(rnd, 0, 1, 99, 101, 1023, 1025, 5000, 20_000),
		framing: pick(rnd, "length", "length", "chunks", "chunks", "close"), media: pick(rnd, "text/plain", "text/html; charset=utf-8", "application/json", "image/png", ""),
		etag: pick(rnd, "", `"e"`, `W/"e"`), vary: pick(rnd, "", "", "Accept-Language", "accept-encoding"), control: pick(rnd, "", "", "", "no-transform"),
		trailers: one(rnd, 3), closes: one(rnd, 6), coded: one(rnd, 8), checksum: one(rnd, 10),
	}
	if one(rnd, 6) {
		try.interims = 1
	}
	if try.framing != "chunks" {
		try.trailers = false
	}
	if c.grpc {
		try.status, try.media, try.coded, try.checksum = pick(rnd, 200, 200, 200, 503), "application/grpc", false, false
		try.framing, try.trailers = pick(rnd, "chunks", "chunks", "length"), true
		if try.framing != "chunks" {
			try.trailers = false
		}
	}
	if c.upgrade != "" { // any 2xx agrees to a CONNECT
		try.status, try.trailers = pick(rnd, 200, 200, 200, 403, 404, 500, 503), false
	}
	try.early, try.duplex = one(rnd, 2), c.chunked && try.size > 0 && try.status < 300 && !try.bodiless() && one(rnd, 3) // an error, or an answer without content, ends the upload
	try.fault = pick(rnd, "", "", "", "", "", "", "reset", "close", "cut", "early")
	switch {
	case c.serverName() == "framed" && !last && one(rnd, 4):
		try.fault = pick(rnd, "refuse", "refuse", "goaway")
	case try.fault == "early" && (len(c.body) == 0 || c.expects || try.status >= 500):
		try.fault = ""
	case try.fault == "cut" && (try.size < 2 || try.framing == "close"):
		try.fault = ""
	case c.upgrade != "" && (try.fault == "cut" || try.fault == "early"):
		try.fault = ""
	case c.hasty && one(rnd, 3), c.route.slow && one(rnd, 20):
		try.fault = "stall"
	}
	if try.status == http.StatusNotModified {
		c.asksFor = pick(rnd, "", `"e"`, `W/"e"`)
	}
	return try
}

// fieldsOfRequest are those of a request besides Host and the framing.
func (c *combined) fieldsOfRequest() [][2]string {
	f := [][2]string{{"X-Tag", c.tag}, {"X-Request-Id", c.tag}, {"X-User", "evil"}, {"X-Set", "client"}, {"X-Add", "client"}, {"X-Drop", "1"}}
	add := func(name, value string) {
		if value != "" {
			f = append(f, [2]string{name, value})
		}
	}
	switch password := map[string]string{"right": combinePassword, "wrong": "x", "down": "y"}[c.credential]; {
	case c.credential == "none":
	case c.route.auth == "basic":
		add("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("bob:"+password)))
	case c.route.auth == "bearer" && c.credential == "right":
		add("Authorization", "Bearer "+combineKey)
	case c.route.auth == "token" && c.credential == "right":
		add("Authorization", "Bearer "+combineToken)
	case c.route.auth == "token":
		add("Authorization", "Bearer "+combineToken+"x")
	case c.route.auth == "bearer":
		add("X-Api-Key", "hp_wrong")
	default:
		add("Authorization", "Basic "+c.credential)
	}
	add("Origin", c.origin)
	add("Accept-Encoding", c.accept)
	add("If-None-Match", c.asksFor)
	add("X-Bucket", c.bucket)
	if c.wantsJSON {
		add("Accept", "application/json")
	}
	if c.idempotent {
		add("Idempotency-Key", c.tag)
	}
	if c.preflight {
		add("Access-Control-Request-Method", "POST")
	}
	switch {
	case c.grpc:
		add("Content-Type", "application/grpc+proto")
		if add("Te", "trailers"); c.hasty {
			add("Grpc-Timeout", "150m")
		}
	case len(c.body) > 0:
		add("Content-Type", map[bool]string{true: "application/json", false: "application/octet-stream"}[c.model != ""])
	}
	return f
}

// text is the request as text.
func (c *combined) text() (head, body []byte) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s%s%s HTTP/1.%d\r\nHost: %s\r\n", c.method, c.route.prefix, c.rest, c.query, c.proto-10, combineHost)
	for _, f := range c.fieldsOfRequest() {
		b.WriteString(f[0] + ": " + f[1] + "\r\n")
	}
	options := "X-Hop"
	switch {
	case c.proto == 10 && !c.closes:
		options += ", keep-alive"
	case c.closes:
		options += ", close"
	case c.upgrade != "":
		options += ", upgrade"
	}
	if c.upgrade != "" {
		b.WriteString("Upgrade: " + c.upgrade + "\r\nSec-WebSocket-Version: 13\r\n")
	}
	if c.upgrade == "websocket" {
		b.WriteString("Sec-WebSocket-Key: " + combineSocketKey + "\r\n")
	}
	b.WriteString("Connection: " + options + "\r\nX-Hop: 1\r\n")
	switch {
	case c.chunked:
		if b.WriteString("Transfer-Encoding: chunked\r\n"); c.trailers {
			b.WriteString("Trailer: X-Up, X-Drop, X-User\r\n")
		}
		body = inChunks(c.body, true, c.trailers, "X-Up: "+c.tag+"\r\nX-Drop: 1\r\nX-User: evil\r\n")
	case len(c.body) > 0 || c.method == "POST":
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(c.body))
		body = c.body
	}
	if c.expects {
		b.WriteString("Expect: 100-continue\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes(), body
}

// dial makes a connection if there is none.
func (k *combineClient) dial() bool {
	if k.conn != nil {
		return true
	}
	c, err := net.Dial("tcp", k.proxy.addr)
	if err != nil {
		k.t.Error(err)
		return false
	}
	k.conn, k.in = c, bufio.NewReader(c)
	return true
}

// sendText sends requests on one connection, in order, and checks the answers.
func (k *combineClient) sendText(all []*combined) {
	if !k.dial() {
		return
	}
	_ = k.conn.SetDeadline(time.Now().Add(patience))
	var out []byte
	for _, c := range all {
		head, body := c.text()
		if out = append(out, head...); !c.expects {
			out = append(out, body...)
		}
	}
	if last := all[len(all)-1]; last.gives {
		if one(k.rnd, 2) {
			out = out[:len(out)-k.rnd.IntN(len(out)/2)]
		} else if !last.expects {
			defer func(c net.Conn, in *bufio.Reader) {
				_, _ = in.ReadByte() // of the answer
				_ = c.Close()
			}(k.conn, k.in)
			_, _ = k.conn.Write(out)
			k.conn = nil
			return
		}
		_, _ = k.conn.Write(out)
		k.drop()
		return
	}
	sent := make(chan error, 1)
	conn := k.conn
	go func() {
		_, err := conn.Write(out)
		sent <- err
	}()
	over := false
	for _, c := range all {
		if over {
			k.unanswered(c)
			continue
		}
		got := k.readText(c)
		if got.nothing && k.before != nil {
			k.t.Logf("on the connection of %s\n\t%s", k.before.tag, k.before)
		}
		k.before = c
		k.settle(c, got)
		over = got.closes || got.err != nil || got.nothing
	}
	if over {
		k.wantEnd(all[len(all)-1])
		k.drop()
	}
	<-sent
}

// wantEnd waits for the end of a connection that is said to end.
func (k *combineClient) wantEnd(c *combined) {
	if _, err := k.in.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		k.failed(c, "the connection goes on after its last answer: %v", err)
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // as connections return it
	return ok && timeout.Timeout()
}

// readText reads the answer to a request of HTTP/1.
func (k *combineClient) readText(c *combined) (got combineGot) {
	for {
		resp, err := http.ReadResponse(k.in, &http.Request{Method: c.method})
		if err != nil {
			got.err, got.nothing = err, true
			return got
		}
		switch {
		case resp.StatusCode == http.StatusSwitchingProtocols:
			got.status, got.header, got.closes = resp.StatusCode, resp.Header, true
			c.converse(h1Socket{k.conn, k.in}, &got)
			return got
		case resp.StatusCode == http.StatusContinue:
			if c.expects {
				_, body := c.text()
				_, _ = k.conn.Write(body)
			} else {
				k.failed(c, "100 Continue, which it does not wait for")
			}
			continue
		case resp.StatusCode < 200:
			if got.interims++; c.proto == 10 || resp.Header.Get("X-Tag") != c.tag {
				k.failed(c, "interim answer %d %v", resp.StatusCode, resp.Header)
			}
			continue
		}
		got.status, got.header = resp.StatusCode, resp.Header
		got.body, got.err = io.ReadAll(resp.Body)
		got.trailer = resp.Trailer
		got.closes = resp.Close || c.proto == 10 && !strings.EqualFold(resp.Header.Get("Connection"), "keep-alive")
		if resp.ContentLength >= 0 && got.header.Get("Content-Length") == "" && resp.ContentLength > 0 {
			got.header.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
		}
		return got
	}
}

// lateReader begins when it is ready.
type lateReader struct {
	io.Reader
	ready <-chan struct{}
}

func (r *lateReader) Read(p []byte) (int, error) {
	<-r.ready
	return r.Reader.Read(p)
}

// sendCoded sends a request of HTTP/2.
func (k *combineClient) sendCoded(c *combined) (got combineGot) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var interims atomic.Int64 // some may come after the client has left
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
		if interims.Add(1); status != http.StatusContinue && h.Get("X-Tag") != c.tag {
			k.failed(c, "interim answer %d %v", status, h)
		}
		return nil
	}})
	if c.gives {
		time.AfterFunc(time.Duration(k.rnd.IntN(5000))*time.Microsecond, cancel)
	}
	answered, answer := context.WithTimeout(ctx, 30*time.Millisecond)
	defer answer()
	var body io.Reader
	if len(c.body) > 0 || c.method == "POST" || c.chunked {
		if body = bytes.NewReader(c.body); c.chunked {
			body = io.MultiReader(body) // without a length
			if c.waits {
				body = io.MultiReader(bytes.NewReader(c.body[:len(c.body)/2]), &lateReader{Reader: bytes.NewReader(c.body[len(c.body)/2:]), ready: answered.Done()})
			}
		}
	}
	req, err := http.NewRequestWithContext(ctx, c.method, k.proxy.url+c.route.prefix+c.rest+c.query, body)
	if err != nil {
		k.t.Error(err)
		return got
	}
	req.Host = combineHost
	for _, f := range c.fieldsOfRequest() {
		req.Header.Add(f[0], f[1])
	}
	if c.expects {
		req.Header.Set("Expect", "100-continue")
	}
	if c.trailers {
		req.Trailer = http.Header{"X-Up": {c.tag}, "X-Drop": {"1"}, "X-User": {"evil"}}
	}
	begun := time.Now()
	resp, err := k.coded.Do(req)
	answer()
	if got.took = time.Since(begun); err != nil {
		got.err, got.nothing = err, true
		return got
	}
	defer resp.Body.Close()
	got.status, got.header = resp.StatusCode, resp.Header
	got.body, got.err = io.ReadAll(resp.Body)
	got.trailer, got.interims = resp.Trailer, int(interims.Load())
	if resp.StatusCode == http.StatusNotModified && resp.ContentLength > 0 && len(got.body) == 0 {
		got.err = nil // net/http wants the content, which RFC 9113, section 8.1.1, does not
	}
	return got
}
