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

// measure is added to the test's copy of the page. It reports the page's width, what it has loaded, and its colour.
const measure = `<script>parent.postMessage("wide " + document.documentElement.scrollWidth + " window " + innerWidth +
	" loaded " + performance.getEntriesByType("resource").length + " svg " + document.querySelectorAll("svg").length +
	" background " + getComputedStyle(document.body).backgroundColor, "*")</script></body>`

// frame shows the page in a window of any width. Headless Chromium cannot.
const frame = `<!doctype html><title>nothing</title><script>addEventListener("message", e => document.title = e.data)</script>
<iframe src="report.html" style="border: 0; width: WIDTHpx; height: 800px"></iframe>`

var rendered = regexp.MustCompile(`<title>wide (\d+) window (\d+) loaded (\d+) svg (\d+) background (.*)</title>`)

// TestPageInChromium renders the page for a desktop, a phone, dark mode and print. The console stays empty, the page
// loads nothing, and nothing is wider than the window. `make test-report` runs it, and `make test` if Chromium is
// installed.
func TestPageInChromium(t *testing.T) {
	var page bytes.Buffer
	if err := report.HTML(&page, sample()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return "file://" + path
	}
	for _, c := range []struct {
		name, width, background string
		flags                   []string
	}{
		{"desk", "1400", "rgb(255, 255, 255)", nil},
		{"phone", "360", "rgb(255, 255, 255)", nil},
		{"dark", "1400", "rgb(21, 24, 28)", []string{"--blink-settings=preferredColorScheme=0"}},
		{"paper", "1030", "rgb(255, 255, 255)", nil}, // A4, 12 mm of margin, in its breadth
	} {
		text := page.String()
		if c.name == "paper" {
			text = strings.Replace(text, "@media print", "@media screen", 1)
		}
		write("report.html", strings.Replace(text, "</body>", measure, 1))
		file, dom := write(c.name+".html", strings.Replace(frame, "WIDTH", c.width, 1)), ""
		var m []string
		for tries := 0; m == nil; tries++ { // on a busy machine Chromium may print the page before it has handled the message
			if tries == 10 {
				t.Fatalf("%s: not rendered:\n%.2000s", c.name, dom)
			}
			dom = browse(t, append(c.flags, "--dump-dom", file)...)
			m = rendered.FindStringSubmatch(dom)
		}
		wide, _ := strconv.Atoi(m[1])
		window, _ := strconv.Atoi(c.width)
		if m[2] != c.width || wide > window || m[3] != "0" || m[4] != "13" || m[5] != c.background {
			t.Errorf("%s: %s", c.name, m[0])
		}
	}
	pdf := filepath.Join(dir, "report.pdf")
	browse(t, "--print-to-pdf="+pdf, write("plain.html", page.String()))
	if data, err := os.ReadFile(pdf); err != nil || !bytes.HasPrefix(data, []byte("%PDF")) {
		t.Errorf("not printed: %v", err)
	}
}

// browse runs Chromium and returns its output. The console must stay empty.
func browse(t *testing.T, args ...string) string {
	t.Helper()
	common := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", "--allow-file-access-from-files", "--user-data-dir=" + t.TempDir(), "--window-size=1500,900"}
	cmd := exec.Command(chromium(t), append(common, args...)...)
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
