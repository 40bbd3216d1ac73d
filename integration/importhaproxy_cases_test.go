package integration

// haproxyCases are configurations of HAProxy, each with a listener "web".
var haproxyCases = map[string]struct {
	config string
	plain  bool // there is also a listener "plain"
}{
	"hosts and paths": {config: `
frontend www
    bind LISTEN(web)
    acl is_api path_beg /api/
    acl is_static path_end .css .js
    acl host_shop hdr(host) -i shop.example www.shop.example
    acl internal src 10.0.0.0/8
    http-request deny if { path_beg /admin } !internal
    http-request set-header X-Client %[src]
    http-request set-header X-Method-Copy %[method]
    http-request redirect location https://www.example.com%[path] code 301 if { path /old }
    http-request del-header X-Secret
    http-response set-header X-Site main
    use_backend api if is_api METH_POST
    use_backend api_ro if is_api
    use_backend shop if host_shop !is_static
    use_backend static if is_static
    default_backend web
backend web
    balance roundrobin
    server w1 SERVER(web)
backend api
    http-request set-path /v2%[path]
    server a1 SERVER(api) maxconn 50
backend api_ro
    http-request replace-path ^/api/(.*) /ro/\1
    http-response set-header X-Site readonly
    server a2 SERVER(ro)
backend shop
    server s1 SERVER(shop) weight 10
    server s2 SERVER(spare) backup
backend static
    http-response del-header Server
    server st SERVER(static)
`},
	"order": {config: `
frontend www
    bind LISTEN(web)
    use_backend a if { path_beg / } { hdr_end(host) -i .shop.example } { method DELETE }
    use_backend b if { path_reg ^/users/[0-9]+ } or { path_sub /v1/api }
    use_backend c if { path_beg /api } !{ path_end .css }
    use_backend d if { req.hdr(X-Beta) 1 } { path -i /api/x /A.css }
    use_backend e if { url_param(v) 2 }
    use_backend f unless { hdr(host) -i www.example other.test }
    use_backend g if { path_dir static }
    use_backend nowhere if { path /old/ }
    default_backend h
backend a
    server s SERVER(a)
backend b
    server s SERVER(b)
backend c
    server s SERVER(c)
backend d
    server s SERVER(d)
backend e
    server s SERVER(e)
backend f
    server s SERVER(f)
backend g
    server s SERVER(g)
backend h
    server s SERVER(h)
backend nowhere
    retries 0
    server s DOWN
`},
	"rules one after the other": {config: `
frontend www
    bind LISTEN(web)
    acl beta req.hdr(X-Beta) -m found
    acl shop hdr(host) shop.example
    http-request set-header X-Area shop if shop
    http-request set-header X-Stage beta if beta
    http-request add-header X-Stage more if { path_beg /api }
    http-request allow if { path_beg /api/v1 }
    http-request deny deny_status 404 if { path_end .js }
    http-request redirect prefix https://shop.example if { path_beg /old } !shop
    http-request return status 201 content-type text/plain string "made" if { path /x } shop
    http-request redirect location /new%[path] code 303 drop-query if { path_beg /users } METH_GET
    http-after-response set-header Strict-Transport-Security "max-age=60"
    default_backend web
backend web
    http-request set-path %[path,regsub(^/api/,/)] if { path_beg /api/ }
    server s SERVER(web)
`},
	"tls": {plain: true, config: `
frontend www
    bind LISTEN(plain)
    bind LISTEN(web) ssl crt DIR/site.pem alpn h2,http/1.1
    http-request redirect scheme https code 301 unless { ssl_fc }
    http-request set-header X-Scheme %[ssl_fc,iif(https,http)]
    use_backend shop if { ssl_fc_sni -i shop.example }
    default_backend web
backend web
    server s SERVER(web)
backend shop
    server s SERVER(shop)
`},
	"defaults": {config: `
defaults base
    mode http
    timeout connect 1s
    timeout client 5s
    timeout server 5s
    option redispatch
defaults site from base
    http-request set-header X-From site
    balance leastconn
frontend www from base
    bind LISTEN(web)
    default_backend web
backend web from site
    option httpchk
    http-check send meth GET uri /healthz
    http-check expect status 200
    default-server check inter 300ms rise 1 fall 2
    server down DOWN
    server up SERVER(up)
`},
	"parts of values": {config: `
frontend www
    bind LISTEN(web)
    http-request allow if { path_beg /api/v1/ }
    http-request deny if { hdr_beg(user-agent) -i BOT }
    redirect prefix https://other.example if { hdr(host) other.test } { path_beg /api/ }
    use_backend a if { req.cook(stage) beta } { path_beg /api }
    use_backend b if { req.cook(stage) -m beg be }
    use_backend c if { hdr_sub(user-agent) -i CURL } !{ path_end .css }
    use_backend d if { req.cook(team) -m found } METH_POST
    use_backend e if { url_param(v) -m reg ^[2-9] }
    use_backend f if { hdr_reg(x-secret) ^s+$ } { hdr_end(x-beta) 1 }
    default_backend web
backend a
    server s SERVER(a)
backend b
    server s SERVER(b)
backend c
    server s SERVER(c)
backend d
    server s SERVER(d)
backend e
    server s SERVER(e)
backend f
    server s SERVER(f)
backend web
    server s SERVER(web)
`},
	"names and users": {config: `
# not all of it: X-Cn has no equal
userlist team
    group ops users ann
    user ann insecure-password secret
    user bob insecure-password other
frontend www
    bind LISTEN(web)
    http-request set-header X-Cn %[ssl_c_s_dn(cn)]
    http-request set-var(txn.site) req.hdr(host),field(1,:),lower
    http-request auth realm ops if { path_beg /admin } !{ http_auth_group(team) ops }
    use_backend a if { hdr_reg(host) -i ^(other|another)\.test$ }
    use_backend b if { var(txn.site) -m str a.shop.example }
    use_backend c if { hdr_end(host) -i shop.example }
    default_backend web
backend a
    server s SERVER(a)
backend b
    server s SERVER(b)
backend c
    server s SERVER(c)
backend web
    stick-table type ip size 10k expire 1m
    stick on src
    server s SERVER(web)
`},
}
