package http3_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quic-go/quic-go"

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

// released is the built program with an HTTP/3 listener.
type released struct {
	*world
	program, file, address string
	log                    *conntest.Log
}

func release(t *testing.T) *released {
	t.Helper()
	dir := t.TempDir()
	r := &released{
		world:   run(t, standard), // for its server and certificates
		program: filepath.Join(dir, "headpond"), file: filepath.Join(dir, "headpond.yaml"), address: conntest.FreeAddress(t),
		log: &conntest.Log{},
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", r.program, "../peers/cmd/headpond")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the Makefile builds it
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := strings.NewReplacer(append([]string{"127.0.0.1:0", r.address}, r.pairs...)...).Replace(standard)
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// start returns the program when it listens.
func (r *released) start() *conntest.Process {
	r.t.Helper()
	serve := exec.Command(r.program, "serve", r.file)
	serve.Stdout, serve.Stderr = r.log, r.log
	p := conntest.Start(r.t, serve)
	conntest.Eventually(r.t, "the program listens", func() bool {
		c, err := net.Dial("tcp", r.address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return p
}

// TestReleasedProgram: the built program checks the key, and serves HTTP/3 until it is told to end. If it is killed, the
// next one tells its clients that their connections are lost, so that they need not wait until their idle timeout.
func TestReleasedProgram(t *testing.T) {
	r := release(t)
	if out, err := exec.Command(r.program, "check", r.file).CombinedOutput(); err != nil || !strings.Contains(string(out), ": ok") {
		t.Errorf("check: %v\n%s", err, out)
	}
	p, transport, url := r.start(), r.transport(), "https://"+r.address+"/"
	if body, resp := get(t, transport, url); !strings.HasPrefix(body, "GET ") || resp.Proto != "HTTP/3.0" {
		t.Errorf("%s %q", resp.Proto, body)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	p = r.start()
	resp, err := transport.RoundTrip(request(t, url))
	if err == nil {
		_ = resp.Body.Close()
	}
	if reset, ok := errors.AsType[*quic.StatelessResetError](err); !ok || reset == nil {
		t.Errorf("the first request after the kill ends with %v, want a stateless reset", err)
	}
	if body, _ := get(t, transport, url); !strings.HasPrefix(body, "GET ") {
		t.Errorf("after that: %q", body)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("the program ends with %v\n%s", err, r.log)
	}
}
