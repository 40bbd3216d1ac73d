package haproxycfg_test

import (
	"strings"
	"testing"
)

// directive is a test of some directives: of the frontend, the backend, and after these.
type directive struct {
	front, back, more string
	want              []string // of the configuration, or of the lines on stderr
	not               string   // what is in neither
}

// config returns a whole configuration.
func (d directive) config() string {
	indent := func(text string) string { return "    " + strings.ReplaceAll(text, "; ", "\n    ") + "\n" }
	back := d.back
	if !strings.HasPrefix(back, "server") && !strings.Contains(back, "; server") {
		back += "; server s 10.0.0.9:80"
	}
	front := d.front
	if !strings.Contains(front, "bind ") {
		front += "; bind :8080"
	}
	return "defaults\n    mode http\n" + strings.ReplaceAll(d.more, "; ", "\n    ") + "\nfrontend f\n" + indent(front) + "    default_backend b\nbackend b\n" + indent(back)
}

var directives = []directive{
	// addresses
	{front: "bind *:80", want: []string{`listen: ":80"`}},
	{front: "bind 10.0.0.1:80,[::1]:81", want: []string{`"10.0.0.1:80"`, `"[::1]:81"`, "name: f-81"}},
	{front: "bind :8000-8001", want: []string{`":8000"`, `":8001"`}},
	{front: "bind :80; bind [::]:80 v6only", want: []string{"IPv4 and IPv6"}},
	{front: "bind unix@/run/x.sock mode 660", want: []string{`"unix:/run/x.sock"`, "mode:", "660"}},
	{front: "bind :80; bind abns@x", want: []string{"NOT SUPPORTED"}},
	{front: "bind :443 ssl crt /no/such/etc/a.pem alpn h2,http/1.1 ca-file /no/such/etc/ca verify optional", want: []string{"cert: /no/such/etc/a.pem", "key: /no/such/etc/a.pem", "client_ca:", "client_auth: request"}, not: "NOT SUPPORTED"},
	{front: "bind :80 accept-proxy", want: []string{"accept_proxy: true", "trusted_proxies", "differs"}},
	{front: "bind :80 frobnicate", want: []string{"bind frobnicate: NOT SUPPORTED"}},
	{front: "bind quic4@:443; bind :80", want: []string{"http3: true"}},
	{front: "maxconn 200", want: []string{"max_conns: 200"}},
	// choice of an endpoint
	{back: "balance roundrobin", want: []string{"balance: round_robin # haproxy.cfg:"}},
	{back: "balance leastconn", want: []string{"balance: p2c"}},
	{back: "balance source", want: []string{"balance: ring_hash"}},
	{back: "balance first", want: []string{"balance: first"}},
	{back: "balance random(2)", want: []string{"balance: p2c"}},
	{back: "balance hdr(X-Tenant)", want: []string{"balance: ring_hash", "affinity: {header: X-Tenant, max_load: 0}"}},
	{back: "balance uri", want: []string{"balance uri: NOT SUPPORTED", "balance: round_robin"}},
	{back: "cookie SRV insert indirect; server a 10.0.0.1:80 cookie a", want: []string{"affinity: {cookie: SRV, set_cookie: true}", "balance: ring_hash"}},
	// servers
	{back: "server a 10.0.0.1:80 weight 7; server b [fe00::1]:80 backup; server c unix@/run/c", want: []string{"weight: 7", `"[fe00::1]:80"`, "priority: 1", `"unix:/run/c"`}},
	{back: "server a 10.0.0.1:80; server b 10.0.0.2:80 disabled; server c 10.0.0.3:80 weight 0", want: []string{"it is disabled", "weight is 0"}, not: `address: "10.0.0.2:80"`},
	{back: "server a 10.0.0.1:80; server b 10.0.0.2", want: []string{"server b: NOT SUPPORTED: it has no port"}},
	{back: "server a 10.0.0.1:80 maxconn 30 slowstart 10s", want: []string{"max_size: 30", "slow_start: 10s"}},
	{back: "server a 10.0.0.1:443 ssl verify none sni str(a.example) alpn h2", want: []string{"insecure_skip_verify: true", "server_name: a.example", "protocol: h2"}},
	{back: "server a 10.0.0.1:443 ssl verify required ca-file /no/such/etc/ca.pem crt /no/such/etc/me.pem", want: []string{"ca: /no/such/etc/ca.pem", "cert: /no/such/etc/me.pem"}},
	{back: "server a 10.0.0.1:443 ssl sni req.hdr(host)", want: []string{"server sni: NOT SUPPORTED"}},
	{back: "server a 10.0.0.1:80 send-proxy", want: []string{"server send-proxy: NOT SUPPORTED"}},
	{back: "server a 10.0.0.1:80 frobnicate", want: []string{"server frobnicate: NOT SUPPORTED"}},
	{back: "server-template web 5 web.internal:80 check resolvers r", more: "resolvers r; nameserver a 10.0.0.1:53", want: []string{`dns: "web.internal:80"`, "resolvers r: differs"}},
	// checks
	{back: "default-server inter 500 rise 1 fall 4; server a 10.0.0.1:80 check", want: []string{"tcp: true", "interval: 500ms", "rise: 1", "fall: 4"}},
	{back: "option httpchk GET /up; timeout check 3s; server a 10.0.0.1:80 check port 81", want: []string{"http: /up", "timeout: 3s", "port: 81"}},
	{back: "option httpchk; http-check send meth GET uri /h hdr Host x.example hdr X-A b; http-check expect status 200-202; server a 10.0.0.1:80 check", want: []string{"http: /h", "host: x.example", "expect: [200, 201, 202]", "no header X-A"}},
	{back: `option httpchk GET /h HTTP/1.1\r\nHost:\ x.example; server a 10.0.0.1:80 check`, want: []string{"http: /h", "host: x.example"}, not: "NOT SUPPORTED"},
	{back: "option httpchk; http-check expect string ok; server a 10.0.0.1:80 check", want: []string{"GET /, not OPTIONS", "http-check expect: NOT SUPPORTED"}},
	{back: "option ssl-hello-chk; server a 10.0.0.1:80 check", want: []string{"option ssl-hello-chk: differs", "tcp: true"}},
	{back: "option httpchk GET /up; server a 10.0.0.1:443 check check-ssl ca-file /no/such/etc/ca", want: []string{"https: /up", "ca: /no/such/etc/ca"}},
	// times
	{front: "timeout client 10s", back: "timeout connect 3s; timeout server 25000; timeout queue 2s", want: []string{"connect_timeout: 3s", "timeout: 25s", "idle_timeout: 25s", "acquire_timeout: 2s"}},
	{want: []string{"timeout: never # HAProxy's default"}},
	{front: "timeout client 1m; timeout tunnel 2h", back: "timeout tunnel 2h", want: []string{"idle_timeout: 2h"}},
	{front: "timeout http-request 5s", want: []string{"read_header_timeout: 5s", "client_idle_timeout: 5s"}},
	{front: "timeout http-request 5s; timeout http-keep-alive 620s", want: []string{"read_header_timeout: 5s", "client_idle_timeout: 10m20s"}},
	{front: "timeout client 50s", not: "client_idle_timeout"},
	// conditions
	{front: "http-request deny if { path_beg /a } { method POST }", want: []string{`path: "(?s)/a.*"`, "methods: [POST]", "status: 403"}},
	{front: "http-request deny if { path /a } { req.hdr(X-A) b } { url_param(v) 2 }", want: []string{"path: /a", "path_match: exact", "x-a: b", `v: "2"`}},
	{front: "acl a path_reg -i \\.PHP$; http-request deny if a", want: []string{`path: "(?s).*?(?i:\\.PHP)"`}},
	{front: "http-request deny if { path_reg (?=x) }", want: []string{"RE2", "LET THROUGH"}},
	{front: "http-request deny if { req.cook(a) b }", want: []string{"cookies:", "a: b", "status: 403"}, not: "NOT SUPPORTED"},
	{front: "use_backend b if { hdr_beg(X-A) b } or { hdr_end(X-B) b } or { hdr_sub(X-C) b } or { hdr_reg(X-D) ^b+ }", want: []string{"x-a: {prefix: b}", "x-b: {suffix: b}", "x-c: {contains: b}", `x-d: {regex: "b+.*"}`}, not: "NOT SUPPORTED"},
	{front: "http-request deny if { hdr_sub(User-Agent) -i curl }", want: []string{`user-agent: {regex: "(?i:.*curl.*)"}`, "status: 403"}, not: "NOT SUPPORTED"},
	{front: "use_backend b if { url_param(v) -m beg 2 } or { req.cook(c) -m found } or { cook_reg(d) [0-9] }", want: []string{"v: {prefix: \"2\"}", `c: "*"`, `d: {regex: ".*?[0-9].*"}`}, not: "NOT SUPPORTED"},
	{front: "http-request deny if { hdr(Upgrade) -i websocket }", want: []string{"WebSockets pass on every route", "LET THROUGH"}, not: "status: 403"},
	{front: "http-request deny if { hdr_reg(x) (?=a) }", want: []string{"no route can have a condition on hdr_reg(x)", "LET THROUGH"}},
	{front: "http-request deny if { method TRACE CONNECT }", want: []string{"methods: [TRACE]"}, not: "NOT SUPPORTED"},
	{front: "http-request allow if { path_beg /a/ }; redirect scheme https if { path_beg /a/x/ }", want: []string{"path: /a/x/", "status: 302"}},
	{front: "http-response add-header X-A b; http-response add-header X-A c", want: []string{"X-A: b", "http-response add-header: NOT SUPPORTED: X-A: a rule before adds"}},
	{front: "use_backend b if { path_reg ^/(a|b) }; http-request set-header X-A b if { path_reg ^/x[0-9] }; http-request deny if { path_reg y$ }", want: []string{"http-request deny: NOT SUPPORTED: no route can have its condition together", "LET THROUGH"}},
	{back: "option httpchk GET /up; option ssl-hello-chk; server a 10.0.0.1:80 check", want: []string{"option httpchk: not needed: option ssl-hello-chk follows", "tcp: true"}, not: "http: /up"},
	{back: "option mysql-check user x; server a 10.0.0.1:80 check", want: []string{"option mysql-check: differs"}, not: "NOT SUPPORTED"},
	{front: "http-request deny if { src 10.0.0.0/8 192.168.0.1 }", want: []string{`deny: ["10.0.0.0/8", "192.168.0.1/32"]`}},
	{front: "http-request deny unless { src 10.0.0.0/8 }", want: []string{`allow: ["10.0.0.0/8"]`}},
	{front: "http-request deny if nowhere", want: []string{`there is no acl "nowhere"`}},
	{front: "http-request deny if { hdr(host) -i a.example }", want: []string{"host: a.example", "status: 403"}},
	{front: "http-request deny if { hdr(host) -m end .example }", want: []string{`host: "*.example"`}},
	{front: "acl a path_beg /a; acl w hdr(upgrade) -i websocket; use_backend c if a or w; use_backend w if w; http-request deny if w or { path /x }", more: "backend c; server s 10.0.0.1:80; backend w; server s 10.0.0.1:81", want: []string{
		"path: \"(?s)/a.*\"", "upstream: c", "path: /x", "status: 403", "LET THROUGH; the rule is carried for its other conditions", "backend w: not needed: only rules that are not carried use it",
	}, not: "backend c:"},
	{front: "http-request allow if { path_beg /a } or; http-request deny", want: []string{`path: "(?s)/a.*"`, "status: 403"}},
	{front: "acl w hdr(upgrade) -i websocket; http-request deny unless { path_beg /a } or w", want: []string{"NOT SUPPORTED", "LET THROUGH"}, not: "status: 403"},
	{front: "http-request set-header X-Forwarded-Proto https if { ssl_fc }; http-request set-header X-Secure yes if { ssl_fc }", not: "X-"},
	// rules
	{front: "http-request set-header X-A a%[src]b{", want: []string{`X-A: "a{client_ip}b{{"`}},
	{front: "http-request set-header X-A %[ssl_c_s_dn]", want: []string{"http-request set-header: NOT SUPPORTED"}},
	{front: "http-request set-header X-Forwarded-Proto http", want: []string{"not needed: the gateway always sends"}, not: "NOT SUPPORTED"},
	{front: "http-request set-header X-Forwarded-Proto https", want: []string{"NOT SUPPORTED: the gateway writes X-Forwarded-Proto itself"}},
	{front: "http-request add-header X-A a; http-request del-header X-B", want: []string{"add:", "remove: [X-B]"}},
	{front: "http-response set-header X-A a; http-response del-header Server", want: []string{"response_headers", "remove: [Server]"}},
	{front: "http-response set-header X-A a if { status 500 }", want: []string{"http-response set-header: NOT SUPPORTED"}},
	{front: "http-request redirect scheme https code 301 unless { ssl_fc }", want: []string{`to: "https://{host}{uri}"`, "status: 301"}},
	{front: "redirect location /new if { path /old }", want: []string{"to: /new", "status: 302"}},
	{front: "http-request return status 200 content-type text/plain string ok if { path /up }", want: []string{"status: 200", "body: ok", "content_type: text/plain"}},
	{front: "monitor-uri /up", want: []string{"path: /up", "status: 200"}},
	{back: "http-request set-path /v2%[path]", want: []string{`rewrite: "/v2{path}"`}},
	{back: "http-request replace-path ^/a/(.*) /b/\\1", want: []string{`path: "(?s)/a/(.*)"`, `rewrite: "/b/$1"`}},
	{back: "http-request set-query a=b", want: []string{"http-request set-query: NOT SUPPORTED"}},
	{front: "http-request auth realm x unless { http_auth(u) }", more: "userlist u; user a insecure-password b", want: []string{"-passwords DIR", `deny: ["0.0.0.0/0", "::/0"]`}},
	{front: "stick-table type ip size 1m expire 1m store http_req_rate(10s); http-request track-sc0 src; http-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }", want: []string{"requests: 20", "per: 10s"}},
	{front: "stick-table type ip size 1m store conn_cur,conn_rate(3s); tcp-request connection track-sc0 src; tcp-request connection reject if { src_conn_cur gt 10 }; tcp-request connection reject if { sc0_conn_rate ge 21 }", want: []string{"max_connections_per_source: 10", "connections: 20", "per: 3s"}},
	{front: "tcp-request connection reject if { src 10.0.0.1 }", want: []string{`deny: ["10.0.0.1/32"]`}},
	{back: "compression algo gzip; compression type text/html text/css", want: []string{"compress: {encodings: [gzip], min_bytes: 1, types: [text/html, text/css]}"}},
	{back: "http-error status 503 content-type text/html string <h1>x</h1>", want: []string{"error_pages: [{status: [502, 503], content_type: text/html"}},
	{back: "retry-on conn-failure 503; retries 2", want: []string{"retries: {on: [connect, 503], attempts: 3}"}},
	// hosts, variables and groups
	{front: "use_backend b if { hdr_end(host) -i shop.example }", want: []string{"host: shop.example", `host: "*.shop.example"`}, not: "NOT SUPPORTED"},
	{front: "use_backend b if { hdr_dom(host) -i shop.example }", want: []string{"host: shop.example", `host: "*.shop.example"`}, not: "NOT SUPPORTED"},
	{front: "use_backend b if { hdr_reg(host) -i ^(www\\.)?shop\\.(example|test)$ }", want: []string{"host: shop.example", "host: www.shop.test"}, not: "NOT SUPPORTED"},
	{front: "use_backend b if { hdr_reg(host) -i \\.shop\\.example$ }", want: []string{`host: "*.shop.example"`}, not: "NOT SUPPORTED"},
	{front: "http-request deny if { hdr_reg(host) -i ^shop\\. }", want: []string{"NOT SUPPORTED", "LET THROUGH"}},
	{front: "use_backend b if { hdr_beg(host) api. }", want: []string{"NOT SUPPORTED", "its requests go where later rules send them"}},
	{front: "http-request set-var(txn.h) req.hdr(host),lower; use_backend b if { var(txn.h) -m str a.example }", want: []string{"host: a.example"}, not: "NOT SUPPORTED"},
	{front: "http-request set-var(txn.h) str(x) if { path /a }; use_backend b if { var(txn.h) -m str a.example }", want: []string{"NOT SUPPORTED"}},
	{front: "http-request auth unless { http_auth_group(u) ops }", more: "userlist u; group ops users a; user a insecure-password b", want: []string{"-passwords DIR", `deny: ["0.0.0.0/0", "::/0"]`}, not: "LET THROUGH"},
	// what servers must not take for the proxy's word
	{front: "http-request set-header X-A %[ssl_c_s_dn]", want: []string{"not even a client's own", "remove: [X-A]"}},
	{front: "http-request add-header X-A %[ssl_c_s_dn]", want: []string{"NOT SUPPORTED"}, not: "remove:"},
	{front: "http-request del-header X-In -m beg", want: []string{"those of clients reach the servers"}},
	// who may connect
	{more: "listen t; mode tcp; bind :90; server a 10.0.0.1:90; tcp-request connection accept if { src 10.0.0.0/8 }; tcp-request connection accept if { src 192.168.0.1 }; tcp-request connection reject", want: []string{`allow: ["10.0.0.0/8", "192.168.0.1/32"]`}, not: "NOT SUPPORTED"},
	{more: "listen t; mode tcp; bind :90; server a 10.0.0.1:90; tcp-request connection accept; tcp-request connection reject if { src 10.0.0.1 }", not: "NOT SUPPORTED"},
	{more: "listen t; mode tcp; bind :90; server a 10.0.0.1:90; tcp-request content reject unless { src 10.0.0.0/8 }", want: []string{`allow: ["10.0.0.0/8"]`}, not: "NOT SUPPORTED"},
	// checks that a connection cannot replace, and tables
	{more: "listen t; mode tcp; bind :90; option httpchk; http-check connect ssl; http-check send meth GET uri /healthz; http-check expect status 200; server a 10.0.0.1:90 check verify none", want: []string{"option httpchk: NOT SUPPORTED", "GET CLIENTS", "tcp: true"}, not: "http: /healthz"},
	{more: "listen t; mode tcp; bind :90; option httpchk; http-check connect ssl sni k8s.example port 91; http-check send meth GET uri /healthz; server a 10.0.0.1:90 check ca-file /no/such/etc/ca", want: []string{"https: /healthz", "ca: /no/such/etc/ca", "server_name: k8s.example", "port: 91"}, not: "NOT SUPPORTED"},
	{back: "option httpchk GET /up; server a 10.0.0.1:443 check check-ssl verify none", want: []string{"option httpchk: NOT SUPPORTED", "tcp: true"}, not: "https: /up #"},
	{more: "listen t; mode tcp; bind :90; option tcp-check; tcp-check send info\\r\\n; tcp-check expect string role:master; server a 10.0.0.1:90 check", want: []string{"tcp-check expect: NOT SUPPORTED", "GET CLIENTS", "tcp: true"}},
	{more: "listen t; mode tcp; bind :90; option httpchk GET /primary; server a 10.0.0.1:90 check port 8008", want: []string{"http: /primary", "where HAProxy refuses clients"}, not: "NOT SUPPORTED"},
	{back: "stick-table type ip size 1k; stick on src", want: []string{"balance: ring_hash", "stick on: differs"}, not: "NOT SUPPORTED"},
	{back: "stick-table type string size 1k; stick store-response res.cook(SID); stick match req.cook(SID)", want: []string{"balance: ring_hash", "affinity: {cookie: SID}"}, not: "NOT SUPPORTED"},
	{back: "stick-table type ip size 1; stick on dst", want: []string{"stick on: NOT SUPPORTED", "its clients return to it", "balance: round_robin"}},
	// what needs nothing, and what is lost
	{front: "option forwardfor; option http-server-close; option dontlognull", want: []string{"option forwardfor: not needed", "option http-server-close: not needed"}, not: "NOT SUPPORTED"},
	{front: "option forwardfor header X-Client", want: []string{"option forwardfor: NOT SUPPORTED"}},
	{front: "bind :8080; bind 127.0.0.1:8080", want: []string{"bind: not needed: the listener of :8080 is for this address, too"}, not: `"127.0.0.1:8080"`},
	{front: "http-request deny if { path_beg" + strings.Repeat(" /a-rather-long-path", 30) + " /the-last }", want: []string{"/the-last", "status: 403"}, not: "NOT SUPPORTED"},
	{front: "http-request deny if { path_beg /" + strings.Repeat("a", 1100) + " }", want: []string{"no route can have a condition on path_beg", "LET THROUGH"}},
	{front: "option httplog", want: []string{"access_log: true"}},
	{front: "no option httplog", not: "access_log: true"},
	{front: "filter spoe engine x", want: []string{"filter: NOT SUPPORTED"}},
	{front: "frobnicate 1", want: []string{"frobnicate: NOT SUPPORTED: this is not known"}},
	{more: "listen stats; bind :9000; stats enable", want: []string{"listen stats: differs"}, not: ":9000\""},
	{more: "global; nbthread 4; lua-load x.lua", want: []string{"nbthread: not needed", "lua-load: NOT SUPPORTED"}},
	{more: "listen t; mode tcp; bind :90; server a 10.0.0.1:90 check send-proxy-v2; timeout client 1m; timeout server 2m", want: []string{"protocol: tcp", "idle_timeout: 1m", "send_proxy: v2", "on_unhealthy: keep"}},
	{more: "frontend t; mode tcp; bind :91; use_backend t if { req.ssl_sni -i a.example }; backend t; mode tcp; server a 10.0.0.1:91", want: []string{"sni: a.example", "upstream: t"}},
	{front: "tcp-request inspect-delay 5s; tcp-request content reject if { src 10.0.0.1 }", want: []string{"inspect-delay 5s: not needed", `deny: ["10.0.0.1/32"]`}},
	{front: "bind :80; bind :443 ssl", want: []string{"bind ssl: NOT SUPPORTED"}, not: `":443"`},
	{front: "http-request deny if !{ var(txn.k) -m found }; http-request set-var(txn.k) hdr(x)", want: []string{"no route can have a condition on var(txn.k)", "LET THROUGH"}, not: "x: "},
	{front: "acl k var(txn.k) -m found; http-request deny if !k; http-request set-var(txn.k) hdr(x)", want: []string{"no route can have a condition on var(txn.k)", "LET THROUGH"}, not: "x: "},
	{front: "http-request set-var(txn.k) hdr(x); http-request set-var-fmt(txn.k) no; http-request deny if { var(txn.k) -m str no }", want: []string{"no route can have a condition on var(txn.k)", "LET THROUGH"}, not: "x: "},
	{front: "redirect location /y if { var(txn.k) -m str a }; http-request set-var(txn.k) hdr(x)", want: []string{"x: a"}, not: "LET THROUGH"},
	{front: "http-request deny if { hdr_end(host) -- -int.example }", want: []string{"no route can have a condition on hdr_end(host)", "LET THROUGH"}},
	{more: "listen t; mode tcp; bind :90; server a 10.0.0.1:90; tcp-request content accept if { req_ssl_hello_type 1 }; tcp-request content reject if !{ src 10.0.0.0/8 }", want: []string{`allow: ["10.0.0.0/8"]`, "tcp-request content reject: differs: it refuses clients that a line before accepts"}},
	{back: "balance roundrobin; stick on src table t if { src 10.0.0.1 }", want: []string{"stick on: NOT SUPPORTED"}, not: "ring_hash #"},
	{front: "retries 3; log-format x", want: []string{"retries: not needed", "log-format: differs"}},
	{front: "http-request deny deny_status 429 if { src_http_req_rate gt 5 }", want: []string{"NOT SUPPORTED", "LET THROUGH"}},
	{back: "cookie SRV rewrite", want: []string{"cookie: NOT SUPPORTED"}},
	{back: "disabled", want: []string{"it is disabled", "status: 503"}},
	{back: "compression algo deflate", want: []string{"compression algo: NOT SUPPORTED"}},
	{back: "server a 10.0.0.1:80; server b 10.0.0.2:80 agent-check", want: []string{"server agent-check: NOT SUPPORTED"}},
	{back: "http-request set-var(txn.a) path", want: []string{"set-var(txn.a): differs"}},
	{more: "listen t; mode tcp; bind :90; server a 10.0.0.1:90; http-request deny if { path /x }; cookie A insert", want: []string{"LET THROUGH", "cookie: NOT SUPPORTED"}},
	{more: "backend c; server s 10.0.0.1:80", want: []string{"backend c: not needed: no frontend uses it"}},
	// how a line is read
	{front: `http-request set-header X-A "a \"b\" ${KNOWN} ${UNKNOWN-def}"`, want: []string{`X-A: "a \"b\" of the environment def"`, "$KNOWN: differs"}},
	{front: `http-request set-header X-A 'a ${KNOWN}' # comment`, want: []string{`X-A: "a $${{KNOWN}"`}},
	{front: `http-request set-header X-A a\ b\#c`, want: []string{`X-A: "a b#c"`}},
}

// TestDirectives: each is in the result, or in a report.
func TestDirectives(t *testing.T) {
	for _, d := range directives {
		g, _, err := checked(d.config())
		if err != nil {
			t.Errorf("%v\n%s", err, d.config())
			continue
		}
		text := string(g.YAML("haproxy.cfg"))
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

// TestRefused: what HAProxy refuses, or cannot be read, is an error with its line.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                        "no frontend",
		"bind :80\n":                              `haproxy.cfg:1: "bind" is in no section`,
		"frontend f\n bind \"x\n":                 "haproxy.cfg:2: a quote is not closed",
		"frontend f\n bind x\\\n":                 "haproxy.cfg:2: a backslash ends the line",
		"global\n.if defined(X)\n":                "haproxy.cfg:2:",
		"frontend f from nowhere\n bind :80\n":    "haproxy.cfg:1: there is no section",
		"frontend\n":                              "haproxy.cfg:1: the name is missing",
		"frontend f\n log \"${A[*]}\"\n":          "haproxy.cfg:2:",
		"frontend f\n log \"a\\xzz\"\n":           "haproxy.cfg:2:",
		"frontend f\n bind :1-250\n server x y\n": "no frontend",
		"frontend f\n bnid :80\n":                 "haproxy.cfg:2: bnid: NOT SUPPORTED",
	} {
		if _, _, err := checked(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
