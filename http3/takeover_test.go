package http3_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
)

// holding is a client's socket that gives nothing it has received until it is released.
type holding struct {
	net.PacketConn
	got     chan struct{} // closed when the first packet has come
	once    sync.Once
	release chan struct{}
}

func (h *holding) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := h.PacketConn.ReadFrom(p)
	h.once.Do(func() { close(h.got) })
	<-h.release
	return n, from, err
}

// TestHandshakeDuringTakeover: another listener, which demands certificates of clients, takes the address over during a client's handshake. It
// does not serve the client, which has not been asked for one.
func TestHandshakeDuringTakeover(t *testing.T) {
	authority := certs.New()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pem, _ := certs.PEM(authority.Certificate)
	if err := os.WriteFile(ca, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	public := strings.ReplaceAll(standard, "127.0.0.1:0", conntest.FreeAddress(t))
	internal := strings.NewReplacer("name: web", "name: internal", "key: {key}}", "key: {key}, client_ca: {ca}}").Replace(public)
	w := run(t, public, "{ca}", ca)
	address, err := net.ResolveUDPAddr("udp", w.gw.Addr("web"))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	h := &holding{PacketConn: socket, got: make(chan struct{}), release: make(chan struct{})}
	tr := &quic.Transport{Conn: h}
	defer tr.Close()
	answered := make(chan string, 1)
	go func() {
		conn, err := tr.Dial(context.Background(), address, w.tls(), &quic.Config{})
		if err != nil {
			answered <- ""
			return
		}
		stream, err := conn.OpenStreamSync(context.Background())
		if err != nil {
			answered <- ""
			return
		}
		_, _ = stream.Write(appendFrame(nil, frameHeaders, fields(t, ":method", "GET", ":scheme", "https", ":authority", "localhost", ":path", "/")))
		_ = stream.Close()
		answer, _ := io.ReadAll(stream)
		answered <- string(answer)
	}()
	<-h.got
	if err := w.gw.Reload(w.parse(internal)); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the other listener demands certificates", func() bool {
		resp, err := w.transport().RoundTrip(request(t, "https://"+address.String()+"/"))
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	})
	close(h.release)
	if answer := <-answered; answer != "" {
		t.Errorf("a client without a certificate got %q", answer)
	}
	if len(w.started) > 0 {
		t.Errorf("the server has got %s", <-w.started)
	}
}
