//go:build browser

package http3_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// TestChromium: a browser gets a page and what that asks for by HTTP/3. It is told to, because browsers follow Alt-Svc only where the
// certificate is of an authority that everybody knows.
func TestChromium(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	w := run(t, strings.ReplaceAll(standard, "http3: true", "http3: true, access_log: {path: {log}, format: json}"), "{log}", file)
	sum := sha256.Sum256(w.leaf().RawSubjectPublicKeyInfo)
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		t.Fatal("there is no Chromium")
	}
	origin := "localhost:" + port(t, w.gw.Addr("web"))
	out, err := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(), "--virtual-time-budget=10000",
		"--origin-to-force-quic-on="+origin, "--host-resolver-rules=MAP localhost 127.0.0.1", "--ignore-certificate-errors-spki-list="+base64.StdEncoding.EncodeToString(sum[:]), "--dump-dom", "https://"+origin+"/page").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "by h3") {
		t.Errorf("%v\n%s", err, out)
	}
	conntest.Eventually(t, "the log has a request by HTTP/3", func() bool {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			var l struct {
				Protocol string
				Status   int
			}
			if json.Unmarshal([]byte(line), &l) == nil && l.Protocol == "HTTP/3.0" && l.Status == http.StatusOK {
				return true
			}
		}
		return false
	})
}
