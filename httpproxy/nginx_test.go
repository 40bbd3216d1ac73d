package httpproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// nginxConf serves files from root and answers POSTs, in one process that stays in the foreground.
const nginxConf = `
daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 64; }
http {
	access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f;
	uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s; client_max_body_size 0; gzip on; gzip_types *; gzip_min_length 1;
	server {
		listen unix:%[1]s/socket; keepalive_requests 5; root %[1]s/root;
		location = /post { return 200 "$request_method $content_length $http_x_forwarded_for"; }
		location = /small { client_max_body_size 1; proxy_pass http://127.0.0.1:1; }
	}
}`

// startNginx runs a throw-away nginx on a Unix socket, which also shows that such endpoints work.
func startNginx(t *testing.T) string {
	t.Helper()
	bin, err := exec.LookPath("nginx")
	if err != nil {
		if bin, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Fatalf("this test needs nginx (install the package nginx or nginx-light): %v", err)
		}
	}
	dir, err := os.MkdirTemp("", "hp") // short: a socket's path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(filepath.Join(dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "root", "file"), bytes.Repeat([]byte("0123456789"), 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "root")} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bin, "-e", filepath.Join(dir, "error.log"), "-c", conf)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p := conntest.Start(t, cmd)
	socket := filepath.Join(dir, "socket")
	eventually(t, "nginx listens", func() bool {
		if p.Ended() {
			t.Fatalf("nginx ended: %v\n%s", p.Err, &out)
		}
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return "unix:" + socket
}

// TestNginx is a foreign server: ranges, HEAD, compressed chunks, refused bodies, and a connection closed after five
// requests.
func TestNginx(t *testing.T) {
	u := newUpstream(t, startNginx(t))
	p := startProxy(t, routeTo(u))
	for name, tc := range map[string]struct {
		method, path string
		header       map[string]string
		body         func() io.Reader
		status, size int
	}{
		"file":          {method: "GET", path: "/file", status: 200, size: 1_000_000},
		"range":         {method: "GET", path: "/file", header: map[string]string{"Range": "bytes=5-14"}, status: 206, size: 10},
		"HEAD":          {method: "HEAD", path: "/file", status: 200},
		"not found":     {method: "GET", path: "/none", status: 404, size: -1},
		"post":          {method: "POST", path: "/post", body: func() io.Reader { return strings.NewReader("hello") }, status: 200, size: len("POST 5 127.0.0.1")},
		"chunked post":  {method: "POST", path: "/post", body: func() io.Reader { return io.MultiReader(strings.NewReader("hello")) }, status: 200, size: -1},
		"refused body":  {method: "POST", path: "/small", body: func() io.Reader { return bytes.NewReader(make([]byte, 64<<10)) }, status: 413, size: -1},
		"compressed":    {method: "GET", path: "/file", header: map[string]string{"Accept-Encoding": "gzip"}, status: 200, size: -1},
		"not supported": {method: "PUT", path: "/file", body: func() io.Reader { return strings.NewReader("x") }, status: 405, size: -1},
	} {
		t.Run(name, func(t *testing.T) {
			for range 4 {
				var body io.Reader
				if tc.body != nil {
					body = tc.body()
				}
				req, err := http.NewRequest(tc.method, p.url+tc.path, body)
				if err != nil {
					t.Fatal(err)
				}
				for k, v := range tc.header {
					req.Header.Set(k, v)
				}
				resp, answer := do(t, req)
				if resp.StatusCode != tc.status || (tc.size >= 0 && len(answer) != tc.size) {
					t.Fatalf("got %s and %d bytes: %.200s", resp.Status, len(answer), answer)
				}
				if tc.method == "HEAD" && resp.ContentLength != 1_000_000 {
					t.Errorf("HEAD says %d bytes", resp.ContentLength)
				}
			}
		})
	}
	if s := u.Status().Endpoints[0].Pool; s.Reused == 0 {
		t.Errorf("no connection was used twice: %+v", s)
	}
}
