package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/gatewaytest"
)

// TestProfile: each kind is a compressed profile in a file that only its owner reads.
func TestProfile(t *testing.T) {
	gw := gatewaytest.Run(t, gatewaytest.Parse(t, `
admin: 127.0.0.1:0
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
upstreams:
  echo: {endpoints: ["127.0.0.1:1"]}
`))
	for _, kind := range []string{"heap", "goroutine"} { // cpu takes 10 s
		file := filepath.Join(t.TempDir(), kind)
		code, stdout, stderr := execute("ctl", "-admin", gw.Addr("admin"), "profile", kind, file)
		if code != exitOK || !strings.Contains(stdout, "go tool pprof") {
			t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
		}
		b, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
			t.Errorf("%s: %.20q, %v; want a gzip file", kind, b, err)
		}
		if i, err := os.Stat(file); err != nil || i.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/' {
			t.Errorf("%s: %v, %v; want a file for its owner only", kind, i.Mode(), err)
		}
		if code, _, stderr := execute("ctl", "-admin", gw.Addr("admin"), "profile", kind, file); code != exitOK {
			t.Errorf("the second one does not replace the first: %s", stderr)
		}
	}
	other := filepath.Join(t.TempDir(), "headpond.yaml")
	if err := os.WriteFile(other, []byte("listeners: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := execute("ctl", "-admin", gw.Addr("admin"), "profile", "heap", other)
	if b, err := os.ReadFile(other); code == exitOK || !strings.Contains(stderr, "is not a profile") || err != nil || string(b) != "listeners: []\n" {
		t.Errorf("a file with a mistaken name: exit %d, %s; it has %q, %v", code, stderr, b, err)
	}
	for line, want := range map[string]string{
		"profile":             "profile wants one of cpu, heap, goroutine, and the FILE to write",
		"profile memory f":    "profile wants one of cpu, heap, goroutine, and the FILE to write",
		"profile heap":        "profile wants one of cpu, heap, goroutine, and the FILE to write",
		"profile heap f more": "profile wants one of cpu, heap, goroutine, and the FILE to write",
	} {
		if code, _, stderr := execute(append([]string{"ctl", "-admin", gw.Addr("admin")}, strings.Fields(line)...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s", line, code, stderr)
		}
	}
}
