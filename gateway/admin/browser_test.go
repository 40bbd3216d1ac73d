//go:build browser

package admin_test

import (
	"bytes"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/admin"
)

// TestDashboardInChromium renders the dashboard of a gateway in trouble: it says so, what others have named is text, and the console stays
// empty. `make test-report` runs it, and `make test` where there is a Chromium.
func TestDashboardInChromium(t *testing.T) {
	s := httptest.NewServer(newHandler(t, admin.Config{}))
	defer s.Close()
	dom := ""
	for tries := 0; !strings.Contains(dom, "127.0.0.1:6432"); tries++ { // on a busy machine Chromium may write the page before it has the status
		if tries == 10 {
			t.Fatalf("not rendered:\n%.2000s", dom)
		}
		dom = browse(t, "--virtual-time-budget=3000", "--dump-dom", s.URL+"/")
	}
	for _, want := range []string{
		">ready</p>", "goroutine (io_uring is forbidden)", "every endpoint is out, all of them are tried", "every connection is in use (max_size 4), sessions that wait: 2", "listener db has no place left (max_conns 5), connections that wait: 1", "tunnel peers is not connected since ", ": connection refused</p>", "the log cannot be written, lines missing so far: 6: no space left on device", "listener db: its certificate has expired on ", ">every endpoint is out</span>",
		">127.0.0.1:5432</h4>", ">healthy</span>", ">unhealthy</span>", "auth_failed 2", `class="quiet">the last connection to be opened failed: `, ">connected</span>", ">not connected</span>",
		"&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;",
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(dom, "<img") || t.Failed() {
		t.Errorf("the page is\n%s", dom)
	}
}

// browse runs Chromium, whose console must stay empty, and returns what it writes.
func browse(t *testing.T, args ...string) string {
	t.Helper()
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil && browser == "" {
			browser = path
		}
	}
	if browser == "" {
		t.Fatal("no Chromium: apt-get install chromium")
	}
	common := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", "--user-data-dir=" + t.TempDir(), "--window-size=1400,900"}
	cmd := exec.Command(browser, append(common, args...)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, log.String())
	}
	if strings.Contains(log.String(), "CONSOLE") {
		t.Errorf("%q: the console says\n%s", args, log.String())
	}
	return out.String()
}
