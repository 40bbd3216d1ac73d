//go:build browser

package report_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/bench/internal/report"
)

// TestPageInChromium renders the page for a desk, a phone and in the dark: nothing on the console, nothing to fetch, nothing wider than
// the window. `make test-report` runs it.
func TestPageInChromium(t *testing.T) {
	var page bytes.Buffer
	if err := report.HTML(&page, sample()); err != nil {
		t.Fatal(err)
	}
	// The test's own copy says how wide it has become, and what it has loaded.
	const measure = `<script>document.title = "wide " + document.documentElement.scrollWidth + " window " + innerWidth + " loaded " + performance.getEntriesByType("resource").length + " svg " + document.querySelectorAll("svg").length</script></body>`
	html := strings.Replace(page.String(), "</body>", measure, 1)
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(html), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"desk":  {"--window-size=1400,900"},
		"phone": {"--window-size=500,800"}, // the narrowest that headless Chromium makes
		"dark":  {"--window-size=1400,900", "--blink-settings=preferredColorScheme=0"},
	} {
		args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--user-data-dir=" + t.TempDir(), "--dump-dom"}, flags...)
		cmd := exec.Command(chromium(t), append(args, "file://"+path)...)
		var dom, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &dom, &log
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, log.String())
		}
		if strings.Contains(log.String(), "CONSOLE") {
			t.Errorf("%s: the console says\n%s", name, log.String())
		}
		m := regexp.MustCompile(`<title>wide (\d+) window (\d+) loaded (\d+) svg (\d+)</title>`).FindStringSubmatch(dom.String())
		if m == nil {
			t.Fatalf("%s: not rendered:\n%.2000s", name, dom.String())
		}
		wide, _ := strconv.Atoi(m[1])
		window, _ := strconv.Atoi(m[2])
		if wide > window || m[3] != "0" || m[4] != "13" {
			t.Errorf("%s: %s", name, m[0])
		}
	}
}

func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no Chromium: apt-get install chromium")
	return ""
}
