//go:build browser

package http3_test

import (
	"bufio"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// TestChromium: a browser gets a page and what that asks for by HTTP/3. It is told to, because browsers follow Alt-Svc only where the
// certificate is of an authority that everybody knows.
func TestChromium(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	w := run(t, strings.ReplaceAll(standard, "http3: true", "http3: true, access_log: {path: {log}, format: json}"), "{log}", file)
	origin := "localhost:" + port(t, w.gw.Addr("web"))
	if out := w.browse("https://"+origin+"/page", "--origin-to-force-quic-on="+origin); !strings.Contains(out, "by h3") {
		t.Error(out)
	}
	wantLogged(t, file, "HTTP/3.0", http.StatusOK)
}

// TestWebSocketInChromium: a browser opens a WebSocket in the connection of HTTP/2 that it has.
func TestWebSocketInChromium(t *testing.T) {
	const page = `<p id=p>no answer</p><script>
const ws = new WebSocket("wss://" + location.host + "/ws");
ws.onmessage = e => { document.getElementById("p").textContent = "the answer is " + e.data; ws.close(); };
ws.onopen = () => ws.send("question");
// The browser's virtual time waits for requests, but not for WebSockets. It may begin only when a request has ended to
// handle what a WebSocket got.
(async () => { while (await (await fetch("/closed")).text() != "yes"); })();
</script>`
	closed := make(chan struct{})
	server := conntest.Serve(t, func(c *net.TCPConn) {
		br := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			if r.URL.Path != "/ws" {
				body := page
				if r.URL.Path == "/closed" {
					select {
					case <-closed:
						body = "yes"
					case <-time.After(100 * time.Millisecond):
						body = "no"
					}
				}
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				continue
			}
			sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
			_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
			_, _ = io.CopyN(io.Discard, br, int64(2+4+len("question"))) // a frame with its mask (RFC 6455, section 5.2)
			_, _ = io.WriteString(c, "\x81\x0242")
			_, _ = br.ReadByte() // of the frame that closes
			close(closed)
			return
		}
	})
	file := filepath.Join(t.TempDir(), "access.log")
	w := run(t, strings.ReplaceAll(standard, "http: {http3: true}", "http: {access_log: {path: {log}, format: json}}"), "{log}", file, "{server}", server)
	if out := w.browse("https://localhost:" + port(t, w.gw.Addr("web")) + "/"); !strings.Contains(out, "the answer is 42") {
		t.Error(out)
	}
	wantLogged(t, file, "HTTP/2.0", http.StatusSwitchingProtocols)
}

// browse returns what Chromium makes of a page.
func (w *world) browse(url string, flags ...string) string {
	w.t.Helper()
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		w.t.Fatal("there is no Chromium")
	}
	sum := sha256.Sum256(w.leaf().RawSubjectPublicKeyInfo)
	flags = append(flags, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+w.t.TempDir(), "--virtual-time-budget=10000",
		"--host-resolver-rules=MAP localhost 127.0.0.1", "--ignore-certificate-errors-spki-list="+base64.StdEncoding.EncodeToString(sum[:]), "--dump-dom", url)
	out, err := exec.Command(chromium, flags...).CombinedOutput()
	if err != nil {
		w.t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

// wantLogged waits for a line of the access log.
func wantLogged(t *testing.T, file, protocol string, status int) {
	t.Helper()
	conntest.Eventually(t, "the log has a request by "+protocol, func() bool {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			var l struct {
				Protocol string
				Status   int
			}
			if json.Unmarshal([]byte(line), &l) == nil && l.Protocol == protocol && l.Status == status {
				return true
			}
		}
		return false
	})
}

// leaf returns the certificate that is shown.
func (w *world) leaf() *x509.Certificate {
	w.t.Helper()
	pair, err := tls.LoadX509KeyPair(w.pairs[len(w.pairs)-3], w.pairs[len(w.pairs)-1])
	if err != nil {
		w.t.Fatal(err)
	}
	return pair.Leaf
}
