package http3_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// TestAccessLog: a line for each request, as with other versions of HTTP.
func TestAccessLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	w := run(t, strings.ReplaceAll(standard, "http3: true", "http3: true, access_log: {path: {log}, format: json}"), "{log}", file)
	r := request(t, w.url("/sum"))
	r.Header.Set("User-Agent", "tester/3")
	if _, resp := do(t, w.transport(), r); resp.StatusCode != http.StatusCreated {
		t.Error(resp.Status)
	}
	var line struct {
		Client, Method, Path, Protocol, Upstream string
		Status                                   int
	}
	conntest.Eventually(t, "the line is written", func() bool {
		text, _ := os.ReadFile(file)
		return json.Unmarshal(text, &line) == nil
	})
	if got := fmt.Sprint(line); got != "{127.0.0.1 GET /sum HTTP/3.0 app 201}" {
		t.Errorf("line %s", got)
	}
}

// TestReleasedProgram: the built program checks the key, and serves HTTP/3 until it is told to end.
func TestReleasedProgram(t *testing.T) {
	w := run(t, standard) // for its server and certificates
	dir := t.TempDir()
	program, file, address := filepath.Join(dir, "headpond"), filepath.Join(dir, "headpond.yaml"), conntest.FreeAddress(t)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../peers/cmd/headpond")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := strings.NewReplacer(append([]string{"127.0.0.1:0", address}, w.pairs...)...).Replace(standard)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, "check", file).CombinedOutput(); err != nil || !strings.Contains(string(out), ": ok") {
		t.Errorf("check: %v\n%s", err, out)
	}
	serve, log := exec.Command(program, "serve", file), &conntest.Log{}
	serve.Stdout, serve.Stderr = log, log
	p := conntest.Start(t, serve)
	conntest.Eventually(t, "the program listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	if body, resp := get(t, w.transport(), "https://"+address+"/"); !strings.HasPrefix(body, "GET ") || resp.Proto != "HTTP/3.0" {
		t.Errorf("%s %q", resp.Proto, body)
	}
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("the program ends with %v\n%s", err, log)
	}
}
