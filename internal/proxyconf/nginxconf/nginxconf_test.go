package nginxconf_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	_ "github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/proxyconf/nginxconf"
)

// options know two files, and read none of this machine.
var options = nginxconf.Options{
	Dir: "/no/such/etc",
	Read: func(path string) ([]byte, error) {
		switch path {
		case "/no/such/etc/conf.d/a.conf":
			return []byte("server {\n listen 81;\n location / { proxy_pass http://10.0.0.81; }\n}\n"), nil
		case "/no/such/etc/html/50x.html":
			return []byte("<h1>sorry</h1>"), nil
		case "/no/such/etc/good":
			return []byte("ann:$2y$04$" + strings.Repeat("a", 53) + "\n"), nil
		case "/no/such/etc/loop.conf":
			return []byte("include loop.conf;\n"), nil
		}
		return nil, fs.ErrNotExist
	},
	Glob: func(string) ([]string, error) { return []string{"/no/such/etc/conf.d/a.conf"}, nil },
}

// rejected is the error of a result that the gateway does not accept.
type rejected struct{ error }

// checked converts a configuration, and checks the result as `headpond check` does, but for files that are not there.
func checked(text string) (*proxyconf.Gateway, error) {
	g, err := nginxconf.Convert("nginx.conf", []byte(text), options)
	if err != nil {
		return nil, err
	}
	cfg, problems := config.Parse("result", g.YAML("nginx.conf"))
	if cfg != nil {
		problems = append(problems, gateway.Check(cfg)...)
	}
	var bad []error
	for _, p := range problems {
		if !p.Warning && !strings.Contains(p.Message, "/no/such/etc") {
			bad = append(bad, errors.New(p.String()))
		}
	}
	if len(bad) > 0 {
		return g, rejected{errors.Join(bad...)}
	}
	return g, nil
}

// FuzzConvert: whatever is read without an error gives a configuration that the gateway accepts.
func FuzzConvert(f *testing.F) {
	for _, d := range directives {
		f.Add(d.config())
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := checked(text)
		if bad := (rejected{}); errors.As(err, &bad) {
			t.Errorf("%v\n%s", err, g.YAML("nginx.conf"))
		}
	})
}

// directive is a test of some directives: of a location, of its server, and of http.
type directive struct {
	location, server, http, main string
	want                         []string // of the configuration, or of the lines on stderr
	not                          string
}

func (d directive) config() string {
	location := d.location
	if !strings.Contains(location, "_pass") && !strings.Contains(location, "return") && !strings.Contains(location, "root") {
		location += " proxy_pass http://10.0.0.9:80;"
	}
	server := d.server
	if !strings.Contains(server, "listen") {
		server += " listen 8080;"
	}
	return d.main + "\nhttp {\n" + d.http + "\nserver {\n" + server + "\nlocation /p/ {\n" + location + "\n}\n}\n}\n"
}

var directives = []directive{
	{server: "listen 127.0.0.1:80;", want: []string{`listen: "127.0.0.1:80"`}},
	{server: "listen [::]:80 ipv6only=on; listen 80;", want: []string{`listen: ":80"`, "listen ipv6only: not needed"}},
	{server: "listen unix:/run/n.sock;", want: []string{`"unix:/run/n.sock"`}},
	{server: "listen 443 ssl http2; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_client_certificate ca; ssl_verify_client optional;", want: []string{"cert: /no/such/etc/a.pem", "key: /no/such/etc/a.key", "client_ca:", "client_auth: request"}},
	{server: "listen 443 ssl;", http: "server { listen 80; return 204; }", want: []string{"there is no certificate"}, not: `":443"`},
	{server: "listen 80 proxy_protocol;", want: []string{"accept_proxy: true", "listen proxy_protocol: differs"}},
	{server: "listen 80; listen 81 quic;", want: []string{"listen quic: NOT SUPPORTED"}},
	{server: "server_name a.example .b.example;", want: []string{"- path: /p/"}, not: "host:"},
	{server: "server_name a.example *.b.example .c.example;", http: "server { listen 8080 default_server; return 404; }", want: []string{"host: a.example", `host: "*.b.example"`, "host: c.example", `host: "*.c.example"`}},
	{server: `server_name ~^a\.;`, http: "server { listen 8080 default_server; return 404; }", want: []string{"server_name ~^a\\.: NOT SUPPORTED"}},
	{location: "proxy_pass http://up;", http: "upstream up { server 10.0.0.1:81 weight=2 max_fails=3 fail_timeout=20s; server 10.0.0.2 backup; server 10.0.0.3 down; least_conn; keepalive 9; }", want: []string{`"10.0.0.1:81"`, "weight: 2", "priority: 1", "balance: p2c", "base: 20s", "it is down", "keepalive: not needed"}},
	{location: "proxy_pass http://up;", http: "upstream up { ip_hash; server unix:/run/a max_conns=7; }", want: []string{"balance: ring_hash", "unix:/run/a", "max_size: 7"}},
	{location: "proxy_pass http://up;", http: "upstream up { hash $http_x_tenant consistent; server 10.0.0.1; }", want: []string{"balance: ring_hash", "affinity: {header: x-tenant, max_load: 0}"}},
	{location: "proxy_pass http://up;", http: "upstream up { hash $request_uri; server 10.0.0.1; }", want: []string{"hash $request_uri: NOT SUPPORTED"}},
	{location: "proxy_pass https://10.0.0.1;", want: []string{`"10.0.0.1:443"`, "insecure_skip_verify: true"}},
	{location: "proxy_pass https://a.example; proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem;", want: []string{"ca: /no/such/etc/ca.pem", "server_name: a.example"}},
	{location: "proxy_pass http://$host;", want: []string{"proxy_pass http://$host: NOT SUPPORTED", "status: 502"}},
	{location: "proxy_pass http://10.0.0.1/v2/;", want: []string{`path: "(?s)/p/(.*)"`, `rewrite: "/v2/$${1}"`}},
	{location: "grpc_pass grpc://10.0.0.1:50051;", want: []string{"protocol: h2c"}},
	{want: []string{`Host: "10.0.0.9:80"`, "timeout: 60s # nginx's default", "max_body_kib: 1024", "path: /p", "status: 301"}},
	{location: "proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-A \"\";", want: []string{`X-Real-IP: "{client_ip}"`, "remove: [X-A]"}, not: "Host:"},
	{location: "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header Connection $c;", want: []string{"proxy_set_header: not needed: the gateway always sends X-Forwarded-For"}, not: "NOT SUPPORTED"},
	{location: "proxy_set_header X-A $ssl_client_s_dn;", want: []string{"proxy_set_header X-A: NOT SUPPORTED"}},
	{server: "keepalive_timeout 620s 600; client_header_timeout 5s;", want: []string{"client_idle_timeout: 10m20s", "read_header_timeout: 5s"}},
	{server: "keepalive_timeout 0;", want: []string{"keepalive_timeout: differs"}, not: "client_idle_timeout:"},
	{location: "proxy_connect_timeout 3; proxy_read_timeout 1m30s; client_max_body_size 10m;", want: []string{"connect_timeout: 3s", "timeout: 1m30s", "max_body_kib: 10240"}},
	{location: "proxy_next_upstream error http_503; proxy_next_upstream_tries 2;", want: []string{"retries: {on: [connect, reset, 503], attempts: 2}"}},
	{location: "gzip on; gzip_types text/css; gzip_min_length 1k;", want: []string{"compress: {encodings: [gzip], types: [text/html, text/css], min_bytes: 1024}"}},
	{location: "add_header X-A b; proxy_hide_header X-B;", want: []string{"X-A: b", "remove: [X-B]"}},
	{location: "allow 10.0.0.0/8; deny all;", want: []string{`allow: ["10.0.0.0/8"]`}},
	{location: "deny 10.0.0.1; allow all;", want: []string{`deny: ["10.0.0.1/32"]`}},
	{location: "deny 10.0.0.1; allow 10.0.0.0/8; deny all;", want: []string{`deny: ["10.0.0.1/32"]`, `allow: ["10.0.0.0/8"]`}},
	{location: "allow 10.0.0.1; deny 10.0.0.0/8;", want: []string{"NOT SUPPORTED", `deny: ["0.0.0.0/0", "::/0"]`}},
	{location: "auth_basic x; auth_basic_user_file users;", want: []string{"auth_basic_user_file users: NOT SUPPORTED", `deny: ["0.0.0.0/0", "::/0"]`}},
	{location: "auth_request /auth; auth_request_set $u $upstream_http_x_user; auth_request_set $m $upstream_http_x_mail; proxy_set_header X-User $u; proxy_set_header X-Email $m;", server: "location = /auth { internal; proxy_pass http://10.0.0.2/verify; proxy_pass_request_body off; proxy_set_header Content-Length \"\"; proxy_set_header X-Original-URI $request_uri; proxy_read_timeout 3s; }",
		want: []string{`forward_auth:`, `upstream: "10.0.0.2"`, "path: /verify", "timeout: 3s", "response_headers: [X-User, X-Mail]", "remove: [X-Email]", "the server gets X-Mail, and no X-Email", "auth requests have the client's Host"}, not: "deny:"},
	{location: "auth_request /auth;", server: "location /auth { proxy_pass http://10.0.0.2; proxy_set_header X-Group admins; }", want: []string{"auth_request /auth: NOT SUPPORTED", "no header X-Group: admins", `deny: ["0.0.0.0/0", "::/0"]`}, not: "forward_auth:"},
	{location: "auth_request /auth;", server: "location /auth { fastcgi_pass 10.0.0.2:9000; }", want: []string{"auth_request /auth: NOT SUPPORTED", `deny: ["0.0.0.0/0", "::/0"]`}, not: "forward_auth:"},
	{location: "auth_request /auth; auth_basic x; auth_basic_user_file users;", server: "location /auth { proxy_pass http://10.0.0.2; }", want: []string{"and not both", `deny: ["0.0.0.0/0", "::/0"]`}, not: "basic_auth:"},
	{location: "auth_request off;", server: "auth_request /auth; location /auth { proxy_pass http://10.0.0.2; auth_request off; } location / { auth_request off; return 404; }", not: "forward_auth:"},
	{location: "auth_jwt x;", want: []string{"auth_jwt: NOT SUPPORTED", "nobody may use", `deny: ["0.0.0.0/0", "::/0"]`}},
	{location: "auth_pam off;", server: "auth_pam x; location / { return 404; }", not: "deny:"},
	{location: "proxy_set_header X-User $ssl_client_s_dn;", want: []string{"proxy_set_header X-User: NOT SUPPORTED", "not even a client's own", "remove: [X-User]"}},
	{location: "proxy_set_header X-Real-IP $remote_addr;", server: "set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For;", want: []string{"proxy_set_header X-Real-IP: NOT SUPPORTED", "remove: [X-Real-IP]"}, not: "{client_ip}\""},
	{location: "set $up http://10.0.0.7:81; set $to $up; proxy_pass $to;", want: []string{`"10.0.0.7:81"`}, not: "NOT SUPPORTED"},
	{location: "set $up http://10.0.0.7:81; if ($http_x_a) { set $up http://10.0.0.8; } proxy_pass $up;", want: []string{"set $up: NOT SUPPORTED", "status: 502"}, not: "10.0.0"},
	{location: "set $up http://10.0.0.7:81; proxy_pass $up/x;", want: []string{"rewrite: /x", "the server gets the client's query"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.7$request_uri;", want: []string{`"10.0.0.7:80"`}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://$pool;", http: "map $http_x_tenant $pool { default 10.0.0.1; acme 10.0.0.2; }", want: []string{"x-tenant: {regex:", `"10.0.0.2:80"`, `"10.0.0.1:80"`}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://$pool;", http: "map $args $pool { default 10.0.0.1; acme 10.0.0.2; }", want: []string{"computed", "status: 502"}, not: "10.0.0"},
	{server: "location ~ ^/q/(.*)$ { proxy_pass http://10.0.0.7/z/$1$is_args$args; }", want: []string{`rewrite: "/z/$1"`}, not: "NOT SUPPORTED"},
	{server: "location ~ ^/q/(?<id>[0-9]+)$ { proxy_pass http://10.0.0.7/z/$id$is_args$args; }", want: []string{`rewrite: "/z/$1"`}, not: "NOT SUPPORTED"},
	{http: "server { listen 8080; server_name ~^x; location / { deny all; } }", want: []string{"server_name ~^x: NOT SUPPORTED", "LET THROUGH"}},
	{location: "proxy_pass http://10.0.0.1; if ($http_x_a) { proxy_pass http://10.0.0.2; }", want: []string{"x-a: {regex:", `"10.0.0.2:80"`}, not: "NOT SUPPORTED"},
	{location: "if ($request_method = OPTIONS) { add_header X-Cors yes; return 204; } proxy_pass http://10.0.0.1;", want: []string{"X-Cors: \"yes\"", "status: 204"}, not: "NOT SUPPORTED"},
	{location: "proxy_cache off; expires off; proxy_cache_bypass $http_upgrade;", not: "NOT SUPPORTED"},
	{location: "proxy_pass_request_headers off;", want: []string{"proxy_pass_request_headers: NOT SUPPORTED"}},
	{location: "error_page 502 503 /50x.html; proxy_intercept_errors on;", server: "location = /50x.html { root /no/such/etc/html; }", want: []string{"error_pages: [{status: [502, 503], file: /no/such/etc/html/50x.html, of: both}]", "location: differs: the page of error_page"}, not: "NOT SUPPORTED"},
	{location: "error_page; error_page 502;", server: "geo; map $a; map;", not: "error_pages"},
	{location: "set $a aaaaaaaa; " + strings.Repeat("set $a $a$a; ", 40) + "proxy_pass http://10.0.0.1/$a;", want: []string{"10.0.0.1"}},
	{location: "error_page 502 @down;", want: []string{"error_page 502: NOT SUPPORTED", `"@down" is no file`}, not: "error_pages:"},
	{location: "error_page 404 =200 /x.html;", want: []string{"error_page 404: NOT SUPPORTED", "the status stays"}, not: "error_pages:"},
	{location: "error_page 401 =302 https://login.example/; auth_request /auth;", server: "location /auth { proxy_pass http://10.0.0.2; }", want: []string{"error_page 401: NOT SUPPORTED", "let that redirect them to the login"}},
	{location: "rewrite ^/p/a/(.*)$ /q/$1 last;", server: "location /q/ { proxy_pass http://10.0.0.7/z/; }", want: []string{`path: "(?s)/p/a/(.*)"`, `rewrite: "/z/$1"`, `"10.0.0.7:80"`}, not: "NOT SUPPORTED"},
	{location: "rewrite ^/p/a/(.*)$ /q/$1 last;", server: "location /q/ { proxy_pass http://10.0.0.7/z/; } location /q/r { proxy_pass http://10.0.0.8; }", want: []string{"rewrite ^/p/a/(.*)$: NOT SUPPORTED", "go where others of the block go"}},
	{location: "rewrite ^/p/a/(.*)$ /p/b/$1 last; rewrite ^/p/c$ /p/d last;", want: []string{`rewrite: "/p/b/$1"`, "rewrite: /p/d"}, not: "NOT SUPPORTED"},
	{location: "auth_basic x; auth_basic_user_file good; proxy_set_header X-WEBAUTH-USER $remote_user;", want: []string{"user_header: X-WEBAUTH-USER"}, not: "NOT SUPPORTED"},
	{location: "auth_request /nowhere;", want: []string{"auth_request /nowhere: NOT SUPPORTED", "there is no location", `deny: ["0.0.0.0/0", "::/0"]`}},
	{location: "limit_req zone=z burst=9 nodelay;", http: "limit_req_zone $binary_remote_addr zone=z:10m rate=5r/s;", want: []string{"requests: 10", "per: 2s"}},
	{location: "limit_conn c 5;", want: []string{"limit_conn: NOT SUPPORTED: max_connections_per_source"}},
	{location: "return 204;", want: []string{"status: 204"}, not: "NOT SUPPORTED"},
	{location: "return 301 https://$host$request_uri;", want: []string{`to: "https://{host}{uri}"`, "status: 301"}},
	{location: "return 444;", want: []string{"return: differs: the connection stays open", "status: 403"}},
	{location: "rewrite ^/p/(.*)$ /q/$1 permanent;", want: []string{`path: "(?s)/p/(.*)"`, `to: "/q/$1{query}"`}},
	{location: "rewrite ^/p/(.*)$ /q/$1 break;", want: []string{`rewrite: "/q/$1"`}},
	{location: "rewrite ^/p/(.*)$ /q/$1 last;", want: []string{"rewrite ^/p/(.*)$: NOT SUPPORTED"}},
	{location: "if ($request_method = POST) { return 405; }", want: []string{"methods: [POST]", "status: 405"}},
	{location: "proxy_pass http://up;", http: "upstream up { hash $cookie_a consistent; server 10.0.0.1; }", want: []string{"affinity: {cookie: a}"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($cookie_a ~ b) { return 403; }", want: []string{"cookies:", `a: {regex: ".*?b.*"}`, "status: 403"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($http_user_agent ~* (curl|wget)) { return 403; }", want: []string{`user-agent: {regex: ".*?(?i:(curl|wget)).*"}`}, not: "NOT SUPPORTED"},
	{location: `proxy_pass http://10.0.0.1; if ($http_authorization = "") { return 401; }`, want: []string{`authorization: {regex: ".+"}`, "status: 401"}, not: "NOT SUPPORTED"},
	{location: `proxy_pass http://10.0.0.1; if ($http_user_agent ~ "^$") { return 403; }`, want: []string{`user-agent: {regex: ".+"}`, "status: 403"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($arg_debug) { return 403; }", want: []string{"query:", `debug: {regex: "[^0]|..+"}`}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($arg_x ~ a*) { return 403; }", want: []string{"no route can have this condition; requests that it refused are LET THROUGH"}},
	{location: "proxy_pass http://10.0.0.1; if ($http_upgrade = websocket) { return 403; }", want: []string{"no route can have this condition; requests that it refused are LET THROUGH"}},
	{location: "proxy_pass http://10.0.0.1; if ($request_method !~ ^(GET|HEAD|POST)$) { return 405; }", want: []string{"methods: [GET, HEAD, POST]", "status: 405"}, not: "NOT SUPPORTED"},
	{server: "if ($uri ~* secret) { return 403; }", want: []string{`path: "(?s).*?(?i:secret).*"`, "status: 403"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($uri ~* secret) { return 403; }", want: []string{`path: "(?s)/p/.*?(?i:secret).*"`, "status: 403"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($uri ~* /p*secret) { return 403; }", want: []string{"return: NOT SUPPORTED: no route can have its condition together", "LET THROUGH"}},
	{location: "proxy_pass http://10.0.0.1; if ($remote_addr = 10.0.0.1) { return 403; }", want: []string{`deny: ["10.0.0.1/32"]`}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($blocked) { return 444; } allow 10.0.0.0/8; deny all;", http: "geo $blocked { default 0; 10.1.0.0/16 1; 10.2.0.0/16 1; }", want: []string{`allow: ["10.0.0.0/8"]`, `deny: ["10.1.0.0/16", "10.2.0.0/16"]`, "clients that may not use a route get 403"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($known) { return 403; }", http: "geo $known { default 1; 10.1.0.0/16 0; 10.2.0.0/16 0; }", want: []string{`allow: ["10.1.0.0/16", "10.2.0.0/16"]`}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($known) { return 403; }", http: "geo $known { default 0; 10.0.0.0/8 1; 10.2.0.0/16 0; }", want: []string{"LET THROUGH"}},
	{location: "proxy_pass http://10.0.0.1; if ($known) { return 403; } allow 10.1.2.0/24; deny all;", http: "geo $known { default 1; 10.1.0.0/16 0; }", want: []string{"nobody may use the route", `deny: ["0.0.0.0/0", "::/0"]`}, not: "allow:"},
	{location: "proxy_pass http://10.0.0.1; if ($bot) { return 403; }", http: "map $http_user_agent $bot { default 0; ~*good 0; ~*bot 1; }", want: []string{"user-agent: {regex:", "status: 403"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; if ($bot) { return 403; }", http: "map $args $bot { default 0; ~*bot 1; }", want: []string{"LET THROUGH"}},
	{location: "proxy_pass http://10.0.0.1; if ($https) { return 403; }", not: "403"},
	{location: "proxy_pass http://10.0.0.1; if ($host !~* ^(www\\.)?a\\.example$) { return 444; }", server: "server_name a.example www.a.example b.example;", want: []string{"host: a.example", "host: www.a.example"}, not: "NOT SUPPORTED"},
	{location: "limit_except GET { deny all; }", want: []string{"methods: [GET, HEAD]", `deny: ["0.0.0.0/0", "::/0"]`}, not: "NOT SUPPORTED"},
	{location: "internal; proxy_pass http://10.0.0.1;", want: []string{"status: 404"}, not: "10.0.0.1"},
	{location: "location ~ x { deny all; }", server: "location ~ y { return 204; }", want: []string{"location ~: NOT SUPPORTED", "LET THROUGH"}},
	{location: "location ~ /p/[a-z]*x { deny all; } proxy_pass http://10.0.0.1;", want: []string{"no route can have its condition", "LET THROUGH"}},
	{location: "location ~ x { deny all; } location /p/z { proxy_pass http://10.0.0.7; } location = /p/w { return 204; } proxy_pass http://10.0.0.1;", want: []string{`path: "(?s)/p/.*?(?:x).*"`, `"10.0.0.7:80"`, "path: /p/w", "status: 204"}, not: "NOT SUPPORTED"},
	{location: "proxy_pass http://10.0.0.1; satisfy any; deny all; auth_basic x;", want: []string{"satisfy any: NOT SUPPORTED: a route asks clients", "status: 403"}},
	{location: "proxy_set_header Host $proxy_host;", want: []string{`Host: "10.0.0.9:80"`}, not: "NOT SUPPORTED"},
	{location: "add_header X-A b; add_header X-A c;", want: []string{"X-A: b", "add_header X-A: NOT SUPPORTED: a route adds one value"}},
	{server: "server_name a.example; return 301 https://$server_name$request_uri;", want: []string{`to: "https://a.example{uri}"`}, not: "NOT SUPPORTED"},
	{server: "listen 443; ssl on; ssl_certificate a.pem; ssl_certificate_key a.key;", want: []string{"cert: /no/such/etc/a.pem"}, not: "NOT SUPPORTED"},
	{server: "set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For;", want: []string{`trusted_proxies: ["10.0.0.0/8"]`}, not: "NOT SUPPORTED"},
	{server: "set_real_ip_from 10.0.0.0/8; real_ip_header CF-Connecting-IP;", want: []string{"real_ip_header CF-Connecting-IP: NOT SUPPORTED"}, not: "trusted_proxies: ["},
	{server: "listen 80 proxy_protocol;", want: []string{"accept_proxy: true", `trusted_proxies: ["10.0.0.0/8"`}, not: "0.0.0.0/0"},
	{server: "listen 80;", http: "server { listen 127.0.0.1:80; return 204; }", want: []string{"listen 127.0.0.1:80: NOT SUPPORTED: the gateway listens at :80"}, not: "status: 204"},
	{want: []string{"rewrite_location: true # nginx's default"}},
	{location: "proxy_pass http://10.0.0.1/v2/;", want: []string{`rewrite_location: {own: false, replace: {"http://10.0.0.1/v2/": /p/}} # nginx's default`}},
	{location: "proxy_redirect off;", not: "rewrite_location"},
	{location: "proxy_redirect http://a.example:81/ /p/; proxy_redirect default;", want: []string{`rewrite_location: {replace: {"http://a.example:81/": /p/}}`}, not: "NOT SUPPORTED"},
	{location: "proxy_redirect http://a/ $scheme://$host/p/;", want: []string{`rewrite_location: {own: false, replace: {"http://a/": "{scheme}://{host}/p/"}}`}, not: "NOT SUPPORTED"},
	{location: "proxy_redirect http:// https://;", want: []string{"rewrite_location: true", "proxy_redirect: differs"}, not: "NOT SUPPORTED"},
	{location: "proxy_redirect ~^http://([^/]*)/ /$1/;", want: []string{"proxy_redirect ~^http://([^/]*)/: NOT SUPPORTED"}, not: "rewrite_location:"},
	{location: "proxy_cookie_domain a.internal b.example; proxy_cookie_path /v2/ /p/; proxy_cookie_flags ~ secure httponly samesite=lax;", want: []string{`rewrite_cookies: {own: false, domain: {a.internal: b.example}, path: {/v2/: /p/}, secure: true, http_only: true, same_site: lax}`}, not: "NOT SUPPORTED"},
	{location: "proxy_cookie_flags a secure;", want: []string{"proxy_cookie_flags a: NOT SUPPORTED"}, not: "rewrite_cookies:"},
	{location: `proxy_cookie_path / "/; Secure";`, want: []string{"proxy_cookie_path /: NOT SUPPORTED"}, not: "rewrite_cookies:"},
	{location: "root /srv; try_files $uri @app;", server: "location @app { proxy_set_header Host $host; proxy_pass http://10.0.0.7; }", want: []string{"path: /p/", `"10.0.0.7:80"`, "try_files: differs: the gateway serves no files: all requests go to @app"}, not: "NOT SUPPORTED"},
	{location: "root /srv; allow 10.0.0.0/8; deny all; try_files $uri @app;", server: "deny 10.0.0.1; location @app { allow 10.0.0.2; deny all; proxy_pass http://10.0.0.7; }", want: []string{"both it and @app say who may use them", "status: 404"}, not: `"10.0.0.7:80"`},
	{location: "root /srv; client_max_body_size 1k; try_files $uri @app;", server: "location @app { client_max_body_size 8m; proxy_pass http://10.0.0.7; }", want: []string{"max_body_kib: 1 "}},
	{location: "root /srv; try_files $uri @app;", server: "location @app { client_max_body_size 8m; proxy_pass http://10.0.0.7; }", want: []string{"max_body_kib: 1024 "}},
	{location: "root /srv; client_max_body_size 8m; try_files $uri @app;", server: "location @app { proxy_pass http://10.0.0.7; }", want: []string{"max_body_kib: 1024 "}},
	{location: "root /srv; rewrite ^/p/(.*) /z/$1 break; try_files $uri @app;", server: "location @app { rewrite ^/z/(.*) /y/$1 break; proxy_pass http://10.0.0.7; }", want: []string{"both it and @app rewrite paths", "status: 404"}, not: `"10.0.0.7:80"`},
	{location: "root /srv; try_files $uri @a;", server: "location @a { try_files $uri @a; }", want: []string{"location @a: NOT SUPPORTED: the gateway serves no files", "status: 404"}},
	{location: "root /srv; error_page 404 @app;", server: "location @app { proxy_pass http://10.0.0.7; }", want: []string{"location @app: NOT SUPPORTED"}, not: `"10.0.0.7:80"`},
	{location: "root /srv; try_files $uri @app;", want: []string{"location /p/: NOT SUPPORTED: the gateway serves no files"}},
	{location: "root /srv;", want: []string{"location /p/: NOT SUPPORTED: the gateway serves no files"}},
	{location: "proxy_redirect off; proxy_cache z;", want: []string{"proxy_cache: NOT SUPPORTED"}},
	{location: "access_by_lua_block {\n if x then ngx.exit(\"}\") end -- }\n t = {a = [[ } ]], b = '\\'}'}\n}\n frobnicate;", want: []string{"nginx.conf:7: access_by_lua_block: NOT SUPPORTED: the gateway runs no Lua; requests that it refused are LET THROUGH", "nginx.conf:11: frobnicate", `"10.0.0.9:80"`}},
	{location: "access_by_lua_block {\n t = [=[ } ]] ]=] --[==[ }\n } ]=] ]==]\n}\n frobnicate;", want: []string{"nginx.conf:7: access_by_lua_block", "nginx.conf:11: frobnicate", `"10.0.0.9:80"`}},
	{location: "frobnicate;", want: []string{"frobnicate: NOT SUPPORTED: this is not known"}},
	{server: `location ~ (?=x) { return 200; }`, want: []string{"RE2"}, not: "LET THROUGH"},
	{server: `location ~ (?=x) { deny all; }`, want: []string{"LET THROUGH"}},
	{server: `location ~ /\.(?!well-known).* { return 403; }`, want: []string{`path: "(?s).*/\\..*"`, `path: "(?s).*/\\.well-known.*"`, "status: 403"}, not: "LET THROUGH"},
	{server: "location ^~ /p { return 204; } location ~ x { deny all; }", want: []string{"location /p/: NOT SUPPORTED", "LET THROUGH"}},
	{server: "access_log /x;", want: []string{"access_log: true"}},
	{main: "user www; worker_processes auto; events { }", want: []string{"user: not needed", "worker_processes: not needed", "events: not needed"}},
	{http: "map $http_upgrade $c { default upgrade; }", want: []string{"map: not needed"}},
	{http: "include conf.d/*.conf;", want: []string{`listen: ":81"`, "a.conf:1"}},
	{main: "stream { server { listen 3306; proxy_pass 10.0.0.1:3306; proxy_timeout 5m; proxy_protocol on; } }", want: []string{"protocol: tcp", "idle_timeout: 5m", "send_proxy: v1"}},
	{main: "stream { server { listen 3306; proxy_pass 10.0.0.1:3306; proxy_ssl on; } server { listen 3307; proxy_pass 10.0.0.1:3306; } }", want: []string{"upstream: \"10.0.0.1-3306\"", "upstream: \"10.0.0.1-3306-2\"", "insecure_skip_verify: true"}},
	{main: "stream { server { listen 3306; allow 10.0.0.0/8; deny all; proxy_pass 10.0.0.1:3306; } }", want: []string{`allow: ["10.0.0.0/8"]`}, not: "NOT SUPPORTED"},
	{main: "stream { server { listen 444 ssl; ssl_certificate a; ssl_certificate_key b; ssl_client_certificate c; ssl_verify_client on; proxy_pass 10.0.0.1:3306; } }", want: []string{"ssl_verify_client on: NOT SUPPORTED", "ARE LET IN"}, not: "client_ca:"},
	{main: "stream { map $ssl_preread_server_name $n { a.example 10.0.0.1:443; default 10.0.0.2:443; } server { listen 444; ssl_preread on; proxy_pass $n; } }", want: []string{"sni: a.example"}},
	{http: "map $http_x $b { default no; }", location: `if ($b ~ "^(?!ok)") { return 403; }`, want: []string{"no route can have this condition", "LET THROUGH"}},
	{http: "map $http_x-y $b { default 1; }", location: "if ($b) { return 403; }", want: []string{"no route can have this condition", "LET THROUGH"}},
	{http: "map $http_x $b { default 0; a 1; }", location: "set $b 1; if ($b) { return 403; }", want: []string{"no route can have this condition", "LET THROUGH"}},
	{location: "if ($http_x-y) { return 403; }", want: []string{"no route can have this condition", "LET THROUGH"}},
	{server: "location /z/ { set $u 10.0.0.1; rewrite ^/z/x /y break; set $u 10.0.0.2; proxy_pass http://$u; }", want: []string{"computed from the request"}, not: `"10.0.0.2:80"`},
	{server: "set $u 10.0.0.1; location /z/ { set $u 10.0.0.2; rewrite ^/z/(.*)$ /w/$1 last; } location /w/ { proxy_pass http://$u; }", want: []string{"rewrite ^/z/(.*)$: NOT SUPPORTED"}},
	{server: "rewrite ^/o$ /n/x last; location ~ ^/n/ { proxy_pass http://10.0.0.1; location ~ x$ { deny all; } }", want: []string{"rewrite ^/o$: NOT SUPPORTED"}},
	{server: "rewrite ^/a$ /b last; location = /a { proxy_pass http://10.0.0.1; } location = /b { proxy_pass http://10.0.0.2; } location /x/ { auth_request /a; proxy_pass http://10.0.0.3; }", want: []string{`the server rewrites "/a"`, `deny: ["0.0.0.0/0"`}, not: "forward_auth:"},
	{server: "location /x/ { auth_request /a; location ~ y$ { return 204; } } location ~ z$ { return 204; } location = /a { proxy_pass http://10.0.0.1; }", want: []string{"or an expression beside that, does; requests that it refused are LET THROUGH"}},
	{server: "large_client_header_buffers 4 128k;", want: []string{"large_client_header_buffers: differs", "max_header_kib"}},
	{location: `add_header X-A "a \"b\" {";`, want: []string{`X-A: "a \"b\" {{"`}},
}

// TestDirectives: each is in the result, or in a report.
func TestDirectives(t *testing.T) {
	for _, d := range directives {
		g, err := checked(d.config())
		if err != nil {
			t.Errorf("%v\n%s", err, d.config())
			continue
		}
		text := string(g.YAML("nginx.conf"))
		if _, yaml, ok := strings.Cut(text, "\nlisteners:"); ok {
			text = yaml
		}
		for _, r := range g.Reports.Sorted() {
			text += r.String() + "\n"
		}
		for _, want := range d.want {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing: %s\n%s", want, d.config(), text)
			}
		}
		if d.not != "" && strings.Contains(text, d.not) {
			t.Errorf("%q is in the result of %s\n%s", d.not, d.config(), text)
		}
	}
}

// TestRefused: what nginx refuses, or cannot be read, is an error with its line.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "no server",
		"http {\n":                "nginx.conf:2: the file ends",
		"http {\n}\n}\n":          `nginx.conf:3: "}" is not expected`,
		"a \"b":                   "a quote is not closed",
		"a 'b'c;":                 "goes on after its quote",
		"include nowhere.conf;":   "nginx.conf:1: cannot read",
		"include loop.conf;":      "files include each other",
		strings.Repeat("a {", 50): "too many blocks",
		"server {\n listen 80;\n": "the file ends",
		"a_by_lua_block {\n}}\n":  `nginx.conf:2: "}" is not expected`,
		"a_by_lua_block {\n{\n}":  "nginx.conf:3: the file ends within a block of Lua",
		"\nhtpp {\n}\n":           "nginx.conf:2: htpp: NOT SUPPORTED",
	} {
		if _, err := checked(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
