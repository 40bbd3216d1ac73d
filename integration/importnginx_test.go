package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// startNginx runs nginx.
func startNginx(t *testing.T) func(file string) {
	bin, err := exec.LookPath("nginx")
	if err != nil {
		if bin, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Fatalf("this test needs nginx (install the package nginx or nginx-light): %v", err)
		}
	}
	return func(file string) {
		dir := filepath.Dir(file)
		if out, code := run(t, patience, bin, "-p", dir, "-t", "-c", file); code != 0 {
			t.Fatalf("nginx does not accept the configuration: %s", out)
		}
		start(t, exec.Command(bin, "-p", dir, "-c", file))
	}
}

const nginxMain = `
daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
events { worker_connections 256; }
http {
	access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/f; uwsgi_temp_path DIR/u; scgi_temp_path DIR/s;
%s
}
`

// nginxCases are configurations of nginx, each with a server at "web".
var nginxCases = map[string]string{
	"locations": `
	upstream pool { server SERVER(a) weight=3; keepalive 8; }
	upstream spare { server DOWN; server SERVER(spare) backup; }
	map $http_upgrade $connection_upgrade { default upgrade; '' close; }
	server {
		listen LISTEN(web);
		proxy_set_header Host $host;
		proxy_set_header Upgrade $http_upgrade;
		proxy_set_header Connection $connection_upgrade;
		proxy_set_header X-Real-IP $remote_addr;
		proxy_set_header X-Secret "";
		proxy_http_version 1.1;
		add_header X-Site main always;
		location / { proxy_pass http://pool; }
		location = /old { return 301 https://www.example/new$is_args$args; }
		location /old/ { rewrite ^/old/(.*)$ /moved/$1 permanent; }
		location /api/ { proxy_pass http://SERVER(api)/v2/; }
		location /api { proxy_pass http://SERVER(apis); }
		location /static/ { proxy_pass http://SERVER(static); }
		location ^~ /admin/ { deny all; }
		location ~ \.css$ { proxy_pass http://SERVER(css); }
		location ~* \.js$ { proxy_pass http://spare; }
		location /users/ { rewrite ^/users/([0-9]+)/(.*)$ /u/$1-$2 break; proxy_pass http://SERVER(users); }
		location = /x { return 200 "fine"; }
		location /v1/api { proxy_pass http://SERVER(v)/w; }
	}
`,
	"names": `
	server { listen LISTEN(web) default_server; server_name _; return 404; }
	server {
		listen LISTEN(web);
		server_name www.example;
		if ($request_method = DELETE) { return 405; }
		location / { proxy_pass http://SERVER(www); proxy_set_header X-Beta $http_x_beta; }
		location /admin { proxy_pass http://SERVER(admin); allow 10.0.0.0/8; deny all; }
	}
	server {
		listen LISTEN(web);
		server_name .shop.example other.test;
		if ($host = other.test) { return 302 http://shop.example$request_uri; }
		location / { proxy_pass http://SERVER(shop); }
	}
	server { listen LISTEN(web); server_name a.shop.example; location / { proxy_pass http://SERVER(a); proxy_hide_header X-Powered-By; } }
`,
	"conditions": `
	server { listen LISTEN(web) default_server; server_name www.example; return 301 http://$server_name.test$request_uri; }
	server {
		listen LISTEN(web);
		server_name .shop.example;
		if ($http_user_agent ~* (CURL|wget)) { return 403; }
		if ($cookie_stage = "beta") { return 302 https://beta.example$request_uri; }
		if ($arg_a ~ ^b) { return 405; }
		if ($uri ~ ^/users/[0-9]+) { return 410; }
		proxy_set_header Host $host;
		location / { proxy_pass http://SERVER(shop); }
		location = /x { internal; proxy_pass http://SERVER(internal); }
		location /api/ { if ($http_x_secret = "") { return 401; } limit_except GET { deny all; } proxy_pass http://SERVER(api); }
	}
	server {
		listen LISTEN(web);
		server_name other.test;
		if ($request_method !~ ^(GET|HEAD)$) { return 405; }
		if ($cookie_team) { return 204; }
		location / { proxy_pass http://SERVER(other); proxy_set_header Host $proxy_host; }
	}
`,
	"auth": `
	# not all of it: X-DN has no equal
	map $http_user_agent $bad { default 0; ~*curl 1; }
	geo $outside { default 1; 127.0.0.0/8 0; ::1 0; }
	geo $inside { default 0; 127.0.0.0/8 1; ::1 1; }
	server {
		listen LISTEN(web);
		proxy_set_header Host $host;
		if ($outside) { return 403; }
		location = /auth {
			internal;
			proxy_pass http://SERVER(auth)/verify;
			proxy_pass_request_body off;
			proxy_set_header Content-Length "";
			proxy_set_header Host $host;
			proxy_set_header X-Original-URI $request_uri;
		}
		location / {
			auth_request /auth;
			auth_request_set $user $upstream_http_x_user;
			proxy_set_header Host $host;
			proxy_set_header X-User $user;
			proxy_set_header X-DN $ssl_client_s_dn;
			proxy_pass http://SERVER(web);
		}
		location /static/ { if ($bad) { return 404; } proxy_pass http://SERVER(static); }
		location /api { if ($inside) { return 403; } proxy_pass http://SERVER(api); }
		location = /x { return 503; error_page 503 /page.html; }
		location = /page.html { internal; root DIR; }
		location /v1/ { auth_request off; error_page 502 /page.html; proxy_pass http://DOWN; }
		location /users/ { error_page 401 /page.html; proxy_intercept_errors on; proxy_pass http://SERVER(users); }
	}
`,
	"nested": `
	server {
		listen LISTEN(web);
		proxy_set_header Host $host;
		location / {
			proxy_pass http://SERVER(a);
			location /admin { deny all; }
			location /static/ { proxy_pass http://SERVER(static); }
			location = /x { return 204; }
		}
		location ^~ /api/ {
			proxy_pass http://SERVER(b);
			location ~ x$ { proxy_pass http://SERVER(c); add_header X-Site nested always; }
		}
		location /users/ { location /users/7/ { proxy_pass http://SERVER(d)/w/; } proxy_pass http://SERVER(e); }
		location ~ \.css$ { proxy_pass http://SERVER(css); }
	}
`,
	"variables": `
	map $http_x_beta $pool { default SERVER(a); 1 SERVER(b); }
	map $host $site { hostnames; default http://SERVER(c); .shop.example http://SERVER(d); a.shop.example http://SERVER(e); }
	server {
		listen LISTEN(web);
		set $name SERVER(f);
		set $up http://$name;
		proxy_set_header Host $host;
		if ($host ~* ^(other|another)\.test$) { return 404; }
		rewrite ^/apix$ /v1/edit last;
		location / { proxy_pass $up; proxy_set_header Host $host; proxy_set_header X-Name $name; }
		location /api/ { proxy_pass http://$pool; }
		location /static/ { proxy_pass $site; }
		location ~ ^/users/(.*)$ { proxy_pass http://SERVER(u)/u/$1$is_args$args; }
		location /old/ { rewrite ^/old/(.*)$ /v1/$1 last; }
		location /v1/ { proxy_pass http://SERVER(v)/w/; }
		location /admin { if ($http_x_beta) { proxy_pass http://SERVER(beta); } proxy_pass http://SERVER(admin); }
		location = /old { proxy_pass http://SERVER(g)$request_uri; }
	}
`,
	"rewriting": `
	map $http_x_beta $pool { default SERVER(a); \1 SERVER(b); }
	map $scheme $plain { HTTP 1; }
	geo $outside { 127.0.0.0/8 0; ::1 0; 127.0.0.0/8 1; ::1 1; }
	server {
		listen LISTEN(web);
		proxy_set_header Host $host;
		set $up SERVER(c);
		location / { proxy_pass http://$up; }
		location /admin { proxy_pass http://$pool; }
		location /api/ { if ($http_x_beta) { break; } if ($uri ~ ^/api/) { proxy_pass http://SERVER(d); } proxy_pass http://SERVER(e); }
		location /static/ { rewrite ^/static/a(.*)$ /b$1 break; return 403; proxy_pass http://SERVER(static); }
		location /users/ { set $up SERVER(f); location /users/7/ { proxy_pass http://$up; } proxy_pass http://$up; }
		location /v1/ { if ($outside) { return 403; } proxy_pass http://SERVER(v); }
		location = /x { if ($plain) { return 405; } proxy_pass http://SERVER(x); }
	}
`,
	"tls": `
	server { listen LISTEN(plain); return 301 https://$host$request_uri; }
	server {
		listen LISTEN(web) ssl;
		ssl_certificate DIR/site.pem; ssl_certificate_key DIR/site.pem;
		location / { proxy_pass http://SERVER(web); proxy_set_header X-Scheme $scheme; }
	}
`,
}

// TestImportedFromNginx: with the configuration that `headpond import` makes, the same server answers each request, with the same
// path and headers.
func TestImportedFromNginx(t *testing.T) {
	methods := []string{"GET", "DELETE"}
	hosts := []string{"www.example", "shop.example", "a.shop.example", "b.a.shop.example", "other.test"}
	targets := []string{"/", "/api", "/api/", "/api/x?q=1", "/apix", "/static/a.css", "/static/b", "/a.css", "/a.cssx", "/a.JS?v=2", "/admin", "/admin/x", "/admin/x.css", "/administer", "/old?a=b", "/old/", "/old/x/y?z=1", "/users/7/edit?a=b", "/users/x", "/x", "/v1/api/x", "/v1/apix"}
	for name, config := range nginxCases {
		t.Run(name, func(t *testing.T) {
			p := startPeer(t, "nginx", fmt.Sprintf(nginxMain, config), startNginx(t))
			if strings.Contains(config, "site.pem") {
				p.same("web", "https", methods[:1], hosts[:2], targets[:6])
				p.same("plain", "http", methods[:1], hosts[:2], targets[:6])
			} else {
				p.same("web", "http", methods, hosts, targets, http.Header{"X-Beta": {"1"}, "X-Secret": {"s"}}, http.Header{"Cookie": {"a=b; stage=beta; team=0"}}, http.Header{"User-Agent": {"curl/8"}, "Cookie": {"team=1"}},
					http.Header{"X-Answer-User": {"ann"}, "X-User": {"mallory"}, "X-Dn": {"cn=mallory"}}, http.Header{"X-Answer-Status": {"401"}})
			}
		})
	}
}

// TestImportedAnswersFromNginx: clients see the same addresses and cookies of servers.
func TestImportedAnswersFromNginx(t *testing.T) {
	p := startPeer(t, "nginx", fmt.Sprintf(nginxMain, `
	server {
		listen LISTEN(web);
		proxy_set_header Host $host;
		location / { proxy_pass http://SERVER(a); }
		location /one/ { proxy_pass http://SERVER(b)/two/; }
		location /own/ { proxy_pass http://SERVER(c); proxy_set_header Host $proxy_host; }
		location /off/ { proxy_pass http://SERVER(d); proxy_redirect off; }
		location /to/ {
			proxy_pass http://SERVER(e)/;
			proxy_redirect default;
			proxy_redirect http://old.example/ $scheme://$host/to/;
			proxy_cookie_domain old.example new.example;
			proxy_cookie_path /app/ /to/;
			proxy_cookie_flags ~ httponly samesite=lax;
		}
	}
`), startNginx(t))
	addr := p.servers["LISTEN(web)"]
	seen := func(at, path, location, cookie string) string {
		r, err := http.NewRequest("GET", "http://"+at+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "www.example"
		r.Header.Set("X-Answer-Location", location)
		r.Header.Set("X-Answer-Cookie", cookie)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		base := url.URL{Scheme: "http", Host: "www.example", Path: path}
		to, err := base.Parse(resp.Header.Get("Location"))
		if err != nil {
			t.Fatal(err)
		}
		if to.Hostname() == base.Host {
			to.Host = base.Host
		}
		attributes := strings.Split(strings.ToLower(resp.Header.Get("Set-Cookie")), "; ")
		slices.Sort(attributes)
		return fmt.Sprint(to, attributes)
	}
	for _, path := range []string{"/x", "/one/x", "/own/x", "/off/x", "/to/x"} {
		for _, location := range []string{"http://OWN/y?a=b", "http://OWN/two/y", "/y", "y", "http://old.example/y", "https://other.example/y"} {
			for _, cookie := range []string{"a=b; Path=/app/x; Domain=old.example", "a=b; Path=/; Secure", "a=b"} {
				if want, got := seen(addr, path, location, cookie), seen(p.addrs[addr], path, location, cookie); want != got {
					t.Errorf("%s: %s, %s: %s, and nginx %s", path, location, cookie, got, want)
				}
			}
		}
	}
	if t.Failed() {
		t.Log(p.stderr, p.yaml)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestImportedStreamFromNginx: clients of TLS reach the same server by the name that they ask for.
func TestImportedStreamFromNginx(t *testing.T) {
	bin := startNginx(t)
	load := ""
	if module := "/usr/lib/nginx/modules/ngx_stream_module.so"; exists(module) { // Debian's libnginx-mod-stream
		load = "load_module " + module + ";"
	}
	config := load + `
daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
events { worker_connections 64; }
stream {
	map $ssl_preread_server_name $to { hostnames; one.example ONE; .two.example two; default REST; }
	upstream two { server DOWN backup; server TWO; }
	server { listen LISTEN(tls); ssl_preread on; proxy_pass $to; }
}
`
	for _, name := range []string{"ONE", "TWO", "REST"} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
		s.StartTLS()
		t.Cleanup(s.Close)
		config = strings.ReplaceAll(config, name, s.Listener.Addr().String())
	}
	p := startPeer(t, "nginx", config, bin)
	addr := p.servers["LISTEN(tls)"]
	for _, name := range []string{"one.example", "x.one.example", "two.example", "y.x.two.example", "three.example", ""} {
		var answers []string
		for _, at := range []string{addr, p.addrs[addr]} {
			c, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, ServerName: name})
			if err != nil {
				t.Fatal(name, err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
			text, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(name, err)
			}
			_ = c.Close()
			answers = append(answers, string(text[strings.LastIndexByte(string(text), '\n')+1:]))
		}
		if answers[0] != answers[1] || answers[0] == "" {
			t.Errorf("%q: %q, and nginx %q", name, answers[1], answers[0])
		}
	}
}
