package http3_test

import (
	"bufio"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/internal/conntest"
)

// serveSockets is a server that takes upgrades at /ws and echoes. It ends its side when the client has ended its own, or at once at /ws?short.
func serveSockets(t *testing.T) string {
	return conntest.Serve(t, func(c *net.TCPConn) {
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		key := r.Header.Get("Sec-WebSocket-Key")
		if r.URL.Path != "/ws" || r.Method != http.MethodGet || r.Header.Get("Upgrade") != "websocket" || len(key) != 24 {
			_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
			return
		}
		sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+
			base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\ngreeting ")
		switch r.URL.RawQuery {
		case "short":
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, br)
		case "broken":
			_, _ = br.ReadByte()
			_ = c.SetLinger(0)
		default:
			_, _ = io.Copy(c, br)
		}
	})
}

// dialStreams returns a connection of HTTP/3.
func (w *world) dialStreams() *quichttp3.ClientConn {
	w.t.Helper()
	trust := w.client.Clone()
	trust.NextProtos = []string{"h3"}
	conn, err := quic.DialAddr(w.t.Context(), w.gw.Addr("web"), trust, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.CloseWithError(0, "") })
	return (&quichttp3.Transport{TLSClientConfig: &tls.Config{}}).NewClientConn(conn)
}

// connect asks for a WebSocket.
func connect(t *testing.T, c *quichttp3.ClientConn, protocol, path string) (*quichttp3.RequestStream, *http.Response) {
	t.Helper()
	<-c.ReceivedSettings()
	if !c.Settings().EnableExtendedConnect {
		t.Fatal("the setting is not announced")
	}
	s, err := c.OpenRequestStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := request(t, "https://localhost"+path)
	r.Method, r.Proto = http.MethodConnect, protocol
	r.Header.Set("Sec-WebSocket-Version", "13")
	if err := s.SendRequestHeader(r); err != nil {
		t.Fatal(err)
	}
	resp, err := s.ReadResponse()
	if err != nil {
		t.Fatal(err)
	}
	return s, resp
}

// TestTunnel: WebSockets over HTTP/3, with bytes and ends of both sides.
func TestTunnel(t *testing.T) {
	w := run(t, standard, "{server}", serveSockets(t))
	c := w.dialStreams()
	for _, path := range []string{"/ws", "/ws?short"} {
		s, resp := connect(t, c, "websocket", path)
		if resp.StatusCode != 200 || resp.Header.Get("Sec-WebSocket-Accept") != "" || resp.Header.Get("Connection") != "" {
			t.Fatalf("%s %v", resp.Status, resp.Header)
		}
		want := "greeting "
		if path == "/ws" {
			message := strings.Repeat("message", 100_000)
			go func() {
				_, _ = io.WriteString(s, message)
				_ = s.Close()
			}()
			want += message
		}
		if b, err := io.ReadAll(s); err != nil || string(b) != want {
			t.Errorf("%s: got %d bytes, %v; want %d", path, len(b), err, len(want))
		}
		if _, err := io.WriteString(s, "late"); path == "/ws?short" && err != nil {
			t.Errorf("the client cannot send after the server's end: %v", err)
		}
		_ = s.Close()
	}
	conntest.Eventually(t, "no request is left", func() bool { return len(w.gw.Sessions()) <= 1 })
}

// TestTunnelEnds: refused upgrades are ordinary answers, and a reset of one side is one for the other.
func TestTunnelEnds(t *testing.T) {
	w := run(t, standard, "{server}", serveSockets(t))
	c := w.dialStreams()
	s, resp := connect(t, c, "websocket", "/other")
	if b, err := io.ReadAll(s); resp.StatusCode != http.StatusForbidden || string(b) != "no" {
		t.Errorf("%s %q %v", resp.Status, b, err)
	}
	if _, resp := connect(t, c, "h2c", "/ws"); resp.StatusCode != http.StatusNotImplemented {
		t.Errorf("HTTP within HTTP: %s", resp.Status)
	}
	s, _ = connect(t, c, "websocket", "/ws?broken")
	_, _ = io.WriteString(s, "x")
	_, err := io.ReadAll(s)
	if e, ok := errors.AsType[*quichttp3.Error](err); !ok || !e.Remote {
		t.Errorf("the server breaks off: %v", err)
	}
	s, _ = connect(t, c, "websocket", "/ws")
	s.CancelRead(0)
	s.CancelWrite(0)
	conntest.Eventually(t, "no request is left", func() bool { return len(w.gw.Sessions()) <= 1 })
}
