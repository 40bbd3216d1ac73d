package httpproxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// combineSocketKey is the Sec-WebSocket-Key of clients.
const combineSocketKey = "dGhlIHNhbXBsZSBub25jZQ=="

// addUpgrade makes it a request for an upgrade.
func (c *combined) addUpgrade(rnd *rand.Rand) {
	c.method, c.upgrade = http.MethodGet, pick(rnd, "websocket", "websocket", "pond")
	c.body, c.model, c.chunked, c.trailers, c.expects, c.closes = nil, "", false, false, false, false
	for range pick(rnd, 0, 1, 3) {
		c.said = append(c.said, strings.Repeat(c.tag+"~", 1+rnd.IntN(3000))...)
	}
}

// greeting is what a server says after an upgrade; then it says what the client does.
func (c *combined) greeting() string { return "hello " + c.tag + "|" }

// switches reports whether it comes to its server as a request for an upgrade. The server coded knows no extended CONNECT: what is only
// offered, as clients of HTTP/1.1 do with other protocols than WebSocket, is left out.
func (c *combined) switches() bool {
	return c.upgrade != "" && (c.serverName() != "coded" || c.upgrade == "websocket" || c.proto == 20)
}

// upgrades reports whether the server agrees to the upgrade.
func (c *combined) upgrades(try *combineTry) bool {
	return c.switches() && try.status == http.StatusOK && try.fault == ""
}

// agreement are the fields of the positive answer to try n.
func (c *combined) agreement(n int) [][2]string {
	return [][2]string{{"X-Tag", c.tag}, {"X-Try", strconv.Itoa(n)}, {"X-Out", "server"}, {"X-More", "server"}, {"X-Secret", "s"}, {"Set-Cookie", "own=1"}}
}

// speak is a server's end of an upgraded connection.
func (c *combined) speak(conn *net.TCPConn, in *bufio.Reader, n int, key string) {
	head := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade, X-Hop\r\nX-Hop: 1\r\nUpgrade: " + c.upgrade + "\r\n"
	if key != "" {
		head += "Sec-WebSocket-Accept: " + acceptOf(key) + "\r\n"
	}
	for _, f := range c.agreement(n) {
		head += f[0] + ": " + f[1] + "\r\n"
	}
	_, _ = io.WriteString(conn, head+"\r\n"+c.greeting())
	_, _ = io.Copy(conn, in)
	_ = conn.CloseWrite()
}

// converse is the client's end: it says all that it has to say, while it listens, and then ends its side. What the server has said is
// the body of the answer.
func (c *combined) converse(s socket, got *combineGot) {
	for rest := c.said; len(rest) > 0; {
		n := min(len(rest), 7000)
		if _, got.err = s.Write(rest[:n]); got.err != nil {
			return
		}
		rest = rest[n:]
		for want := len(c.greeting()) + len(c.said) - len(rest); len(got.body) < want && got.err == nil; {
			piece := make([]byte, want-len(got.body))
			n, got.err = s.Read(piece)
			got.body = append(got.body, piece[:n]...)
		}
		if got.err != nil {
			return
		}
	}
	if got.err = s.CloseWrite(); got.err != nil {
		return
	}
	var rest []byte
	rest, got.err = io.ReadAll(s)
	got.body = append(got.body, rest...)
}

// compareUpgrade is for an upgraded connection. Rules for answers do not apply to 101.
func (c *combined) compareUpgrade(want combineWant, got combineGot) string {
	status, protocol := http.StatusSwitchingProtocols, c.upgrade
	if c.proto == 20 {
		status, protocol = http.StatusOK, ""
	}
	switch h := got.header; {
	case got.status != status || got.err != nil:
		return fmt.Sprintf("status %d instead of %d, %v", got.status, status, got.err)
	case !slices.Equal(h["X-Tag"], []string{c.tag}) || h.Get("X-Try") != strconv.Itoa(want.try) || h.Get("Upgrade") != protocol || h["X-Hop"] != nil:
		return fmt.Sprintf("an answer to %q", h)
	case len(h["Set-Cookie"]) != 1+c.cookies() || h["Set-Cookie"][0] != "own=1":
		return fmt.Sprintf("Set-Cookie %q", h["Set-Cookie"])
	case got.interims != c.hints(want.try):
		return fmt.Sprintf("%d interim answers instead of %d", got.interims, c.hints(want.try))
	case (h.Get("Sec-Websocket-Accept") == acceptOf(combineSocketKey)) != (c.proto == 11 && c.upgrade == "websocket"):
		return fmt.Sprintf("Sec-WebSocket-Accept %q", h["Sec-Websocket-Accept"])
	case string(got.body) != c.greeting()+string(c.said):
		return fmt.Sprintf("%d bytes instead of %d", len(got.body), len(c.greeting())+len(c.said))
	}
	return c.compareRules(false, got, []string{"server"})
}

// upgradeCoded asks for an upgrade on an HTTP/2 connection of its own.
func (k *combineClient) upgradeCoded(c *combined) (got combineGot) {
	got.nothing = true
	conn, err := net.Dial("tcp", k.proxy.addr)
	if err != nil {
		got.err = err
		return got
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	f := http2.NewFramer(conn, conn)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = f.WriteSettings()
	var block bytes.Buffer
	coder := hpack.NewEncoder(&block)
	pairs := [][2]string{{":method", "CONNECT"}, {":protocol", c.upgrade}, {":scheme", "http"}, {":path", c.route.prefix + c.rest + c.query}, {":authority", combineHost}, {"sec-websocket-version", "13"}}
	for _, p := range slices.Concat(pairs, c.fieldsOfRequest()) {
		_ = coder.WriteField(hpack.HeaderField{Name: strings.ToLower(p[0]), Value: p[1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	end := &h2End{Conn: conn, Framer: f, id: 1}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			got.err = err
			return got
		}
		if reset, ok := frame.(*http2.RSTStreamFrame); ok {
			got.err = http2.StreamError{StreamID: 1, Code: reset.ErrCode}
			return got
		}
		head, ok := frame.(*http2.MetaHeadersFrame)
		switch {
		case !ok:
			continue
		case head.PseudoValue("status") == "103":
			if got.interims++; !slices.Contains(head.Fields, hpack.HeaderField{Name: "x-tag", Value: c.tag}) {
				k.failed(c, "interim answer %v", head.Fields)
			}
			continue
		}
		got.nothing, got.header = false, http.Header{}
		_, _ = fmt.Sscan(head.PseudoValue("status"), &got.status)
		for _, field := range head.RegularFields() {
			got.header.Add(field.Name, field.Value)
		}
		if end.ended = head.StreamEnded(); got.status == http.StatusOK && got.header.Get("X-Server") == "" && !end.ended {
			c.converse(end, &got)
			return got
		}
		_ = end.CloseWrite()
		got.body, got.err = io.ReadAll(end)
		return got
	}
}
