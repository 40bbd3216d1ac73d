package haproxycfg

import (
	"slices"
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
)

// note is what becomes of a directive that has no handler.
type note struct {
	fate proxyconf.Fate
	text string
}

const (
	itself  = proxyconf.Itself
	differs = proxyconf.Differs
	missing = proxyconf.Missing
)

// handled are the directives of proxies that other files read, and report if they cannot carry them.
var handled = []string{"acl", "bind", "mode", "use_backend", "default_backend", "server", "server-template", "default-server", "http-request", "http-response", "http-after-response", "tcp-request", "redirect", "balance", "cookie", "maxconn", "retries", "retry-on", "errorfile", "http-error", "http-check", "monitor-uri", "disabled", "enabled", "log-format", "stick",
	"timeout client", "timeout server", "timeout connect", "timeout queue", "timeout check", "timeout tunnel", "timeout client-fin", "timeout http-request", "timeout http-keep-alive", "option httpchk", "option allbackups", "option httplog", "option tcplog", "option httpslog", "compression algo", "compression type"}

// proxyNotes are the others.
var proxyNotes = map[string]note{
	"description": {itself, "comments of YAML"}, "id": {itself, "listeners and upstreams have names"}, "guid": {itself, "listeners and upstreams have names"}, "backlog": {itself, "the system's limit applies"}, "bind-process": {itself, "one process uses all cores"},
	"log":                                 {differs, "the log goes to standard error: let systemd pass it on; http: {access_log: {path: …}} is a file"},
	"log-tag":                             {itself, "the log has the listener's name"},
	"log-format-sd":                       {differs, "log: {format: json} has fields"},
	"error-log-format":                    {differs, "the log has the reason of each failure"},
	"log-steps":                           {itself, "a request has one line"},
	"unique-id-format":                    {itself, "X-Request-Id is always sent"},
	"unique-id-header":                    {itself, "X-Request-Id is always sent"},
	"stats":                               {differs, "the statistics are on the gateway's own page: give the configuration admin: 127.0.0.1:9090"},
	"stick-table":                         {differs, "limits of rules that compare its counters are carried; other tables have no equal"},
	"appsession":                          {missing, "affinity of a route goes by a cookie"},
	"hash-type":                           {itself, "hashing is always consistent"},
	"hash-balance-factor":                 {differs, "affinity: {max_load: …} of a route, for a header or cookie"},
	"hash-preserve-affinity":              {itself, "a key goes to the next endpoint while its own is out"},
	"fullconn":                            {itself, "pool: {max_size: …} is fixed"},
	"max-keep-alive-queue":                {itself, "connections are shared by all clients"},
	"http-reuse":                          {itself, "connections are reused where that is safe"},
	"load-server-state-from-file":         {itself, "an upgrade in place (SIGUSR2) keeps what operators have set; server states are found by checks"},
	"server-state-file-name":              {itself, "server states are found by checks"},
	"persist":                             {missing, "RDP cookies are not read"},
	"rate-limit":                          {missing, "connection_rate of a listener is for each client; the rate of all together has no limit"},
	"grace":                               {itself, "drain_timeout"},
	"source":                              {missing, "transparent: true of a tcp upstream connects from the client's address; other addresses are not chosen"},
	"dispatch":                            {missing, "write the address as a server"},
	"transparent":                         {missing, "the gateway connects to the endpoints of upstreams only"},
	"force-persist":                       {missing, "headpond ctl endpoint takes endpoints out and in"},
	"ignore-persist":                      {missing, "a route without affinity spreads its requests"},
	"filter":                              {missing, "the gateway has no filters: compress, mirror and forward_auth of a route do the common ones"},
	"use-server":                          {missing, "give the server an upstream of its own, and a route"},
	"use-fcgi-app":                        {missing, "the gateway does not speak FastCGI"},
	"email-alert":                         {missing, "deploy/ has alerts for Prometheus"},
	"external-check":                      {missing, "checks are requests or connections"},
	"declare":                             {itself, "access logs can have headers"},
	"capture":                             {differs, "access logs can have headers: {header.NAME} in http: {access_log: {format: …}}"},
	"errorloc":                            {missing, "error_pages have texts and files, not redirects"},
	"errorloc302":                         {missing, "error_pages have texts and files, not redirects"},
	"errorloc303":                         {missing, "error_pages have texts and files, not redirects"},
	"errorfiles":                          {missing, "write the files as errorfile, or as error_pages of the listener"},
	"monitor":                             {missing, "GET /api/v1/health of the admin page answers whether the listeners accept"},
	"monitor-net":                         {itself, "checks of a load balancer cost little"},
	"tcp-check":                           {differs, "the check is that a connection opens"},
	"tcp-check expect":                    {missing, "the check is that a connection opens; servers that this kept out, such as replicas, GET CLIENTS"},
	"tcp-response":                        {missing, "the gateway does not look at what tcp servers send"},
	"http-send-name-header":               {missing, "the gateway tells no server its name"},
	"email-alert mailers":                 {missing, "deploy/ has alerts for Prometheus"},
	"timeout server-fin":                  {differs, "idle_timeout bounds it"},
	"timeout tarpit":                      {itself, "clients that are refused get the answer at once"},
	"timeout client-hs":                   {differs, "a TLS handshake has a fixed time"},
	"option forwardfor":                   {itself, "X-Forwarded-For is always sent; a client's own counts from trusted_proxies only"},
	"option forwarded":                    {itself, "Forwarded is always sent"},
	"option originalto":                   {missing, "request_headers of a route can set X-Original-To to a fixed text"},
	"option redispatch":                   {itself, "another endpoint is always tried when a connection cannot be opened"},
	"option http-server-close":            {itself, "connections to servers are reused where that is safe"},
	"option httpclose":                    {itself, "connections are reused where that is safe"},
	"option forceclose":                   {itself, "connections are reused where that is safe"},
	"option http-keep-alive":              {itself, "always"},
	"option http-tunnel":                  {itself, "each request is routed"},
	"option prefer-last-server":           {itself, "connections are shared by all clients"},
	"option dontlognull":                  {itself, "connections without a request have no line"},
	"option dontlog-normal":               {differs, "access_log has min_status, slower_than and sample"},
	"option log-separate-errors":          {itself, "failures are in the gateway's log"},
	"option log-health-checks":            {itself, "changes of endpoints are always logged"},
	"option logasap":                      {itself, "a request has one line, at its end"},
	"option clitcpka":                     {itself, "keep_alive is always on"},
	"option srvtcpka":                     {itself, "keep_alive is always on"},
	"option tcpka":                        {itself, "keep_alive is always on"},
	"option splice-auto":                  {itself, "always, where it helps"},
	"option splice-request":               {itself, "always, where it helps"},
	"option splice-response":              {itself, "always, where it helps"},
	"option tcp-smart-accept":             {itself, "the engine does so"},
	"option tcp-smart-connect":            {itself, "the engine does so"},
	"option nolinger":                     {itself, "the gateway resets what is broken off"},
	"option abortonclose":                 {itself, "always"},
	"option checkcache":                   {missing, "the gateway does not look at whether answers may be cached"},
	"option contstats":                    {itself, "counters are always current"},
	"option persist":                      {itself, "an endpoint that is out gets no requests"},
	"option socket-stats":                 {itself, "each address is a listener with counters"},
	"option http-buffer-request":          {itself, "bodies are streamed"},
	"option http-no-delay":                {itself, "always"},
	"option http-pretend-keepalive":       {itself, "connections are reused where that is safe"},
	"option http-ignore-probes":           {itself, "connections without a request have no line"},
	"option http-use-proxy-header":        {itself, "no"},
	"option http-use-htx":                 {itself, "no"},
	"option http-restrict-req-hdr-names":  {differs, "names with other signs than letters, digits and - pass"},
	"option accept-invalid-http-request":  {missing, "malformed requests are refused"},
	"option accept-invalid-http-response": {missing, "malformed answers are refused"},
	"option accept-unsafe-violations-in-http-request":  {missing, "malformed requests are refused"},
	"option accept-unsafe-violations-in-http-response": {missing, "malformed answers are refused"},
	"option h1-case-adjust-bogus-client":               {missing, "names of headers pass as they are written"},
	"option h1-case-adjust-bogus-server":               {missing, "names of headers pass as they are written"},
	"option independent-streams":                       {differs, "client_idle_timeout and server_idle_timeout of tcp are for one side"},
	"option transparent":                               {missing, "the gateway connects to the endpoints of upstreams only"},
	"option http_proxy":                                {missing, "the gateway connects to the endpoints of upstreams only"},
	"option idle-close-on-response":                    {itself, "clients are told before connections end"},
	"option disable-h2-upgrade":                        {missing, "clients may use HTTP/2"},
	"option tcp-check":                                 {itself, "the check is that a connection opens"},
	"compression offload":                              {differs, "request_headers: {remove: [Accept-Encoding]} leaves compression to the gateway"},
	"compression direction":                            {itself, "answers are compressed"},
	"compression minsize-res":                          {differs, "compress: {min_bytes: …}"},
	"http-errors":                                      {missing, "error_pages of a listener or route"},
}

// sectionNotes are sections that no part of the configuration comes from, as a whole.
var sectionNotes = map[string]note{
	"resolvers": {differs, "names are looked up with the servers of /etc/resolv.conf, as often as their answers say; discover: {dns: {servers: …}} names others"},
	"peers":     {missing, "each gateway counts for itself"}, "mailers": {missing, "deploy/ has alerts for Prometheus"}, "program": {missing, "let systemd start it"}, "cache": {missing, "the gateway has no cache"},
	"ring": {missing, "the log goes to standard error"}, "http-errors": {missing, "error_pages of a listener or route"}, "log-forward": {missing, "the gateway forwards no logs"}, "log-profile": {missing, "access_log has a format"}, "fcgi-app": {missing, "the gateway does not speak FastCGI"},
	"crt-store": {missing, "tls: {certificates: …} of a listener names files"}, "traces": {itself, "debugging of HAProxy"}, "acme": {missing, "the released program obtains certificates: tls: {acme: …}"},
}

// globalNotes are directives of global whose loss may be noticed; all others are HAProxy's own matters.
var globalNotes = map[string]note{
	"lua-load": {missing, "the gateway runs no Lua"}, "lua-load-per-thread": {missing, "the gateway runs no Lua"}, "log": {differs, "the log goes to standard error: let systemd pass it on"}, "stats": {differs, "headpond ctl, and admin: 127.0.0.1:9090"},
	"ssl-default-bind-ciphers": {differs, "those of Go's crypto/tls"}, "ssl-default-bind-ciphersuites": {differs, "those of Go's crypto/tls"}, "ssl-default-server-ciphers": {differs, "those of Go's crypto/tls"}, "ssl-default-server-ciphersuites": {differs, "those of Go's crypto/tls"},
	"maxconn": {itself, "max_conns of each listener, and the limit of open files"}, "nbthread": {itself, "loops follows the cores"}, "nbproc": {itself, "one process uses all cores"}, "daemon": {itself, "systemd starts the gateway"}, "user": {itself, "systemd"}, "group": {itself, "systemd"}, "chroot": {itself, "systemd"}, "pidfile": {itself, "systemd"},
	"ssl-server-verify": {missing, "servers are verified, unless tls: {insecure_skip_verify: true}"}, "h1-case-adjust": {missing, "names of headers pass as they are written"}, "h1-case-adjust-file": {missing, "names of headers pass as they are written"},
	"ca-base": {missing, "write the files with their folders"}, "crt-base": {missing, "write the files with their folders"}, "maxconnrate": {missing, "connection_rate of a listener is for each client"}, "maxsessrate": {missing, "connection_rate of a listener is for each client"}, "setenv": {missing, "set the variable before the import"}, "presetenv": {missing, "set the variable before the import"}, "unsetenv": {missing, "unset the variable before the import"},
	"51degrees-data-file": {missing, "no"}, "deviceatlas-json-file": {missing, "no"}, "wurfl-data-file": {missing, "no"},
}

// reportSections reports the sections that are not proxies.
func (c *converter) reportSections() {
	for _, s := range c.sections {
		if n, ok := sectionNotes[s.kind]; ok {
			c.out.Reports.Add(s.at, strings.TrimSpace(s.kind+" "+s.name), n.fate, "%s", n.text)
		}
		if s.kind != "global" {
			continue
		}
		for _, l := range s.lines {
			n, ok := globalNotes[l.words[0]]
			switch {
			case l.words[0] == "ca-base" || l.words[0] == "crt-base":
				continue // see path
			case !ok:
				n = note{itself, "a matter of HAProxy's process, or tuning"}
			}
			c.out.Reports.Add(l.at, l.name(), n.fate, "%s", n.text)
		}
	}
}

// reportLines reports the directives of a proxy that no other part of the package reads.
func (p *proxy) reportLines() {
	for _, l := range p.lines {
		first, two := l.words[0], l.words[0]
		if len(l.words) > 1 {
			two += " " + l.words[1]
		}
		if elsewhere := !p.http() && strings.HasPrefix(first, "http-re") || p.kind == "backend" && first == "tcp-request"; elsewhere {
			p.c.out.Reports.Add(l.at, l.name(), missing, "there is no such rule for what is forwarded here%s", danger(l))
			continue
		}
		if first == "tcp-request" && !slices.Contains([]string{"connection", "session", "content"}, l.arg(1)) {
			p.c.out.Reports.Add(l.at, l.name(), itself, "where there are routes the gateway waits for what they look at")
			continue
		}
		if slices.Contains(handled, first) || slices.Contains(handled, two) {
			continue
		}
		if first == "option" && slices.Contains(checks, l.arg(1)) && slices.ContainsFunc(p.lines, func(s line) bool { return slices.Contains(s.words, "check") }) {
			continue // see check
		}
		n, ok := proxyNotes[two]
		if two == "option forwardfor" && slices.Contains(l.words, "header") {
			n = note{missing, "the client's address is in X-Forwarded-For; request_headers of a route can set another one: {client_ip}"}
		}
		if !ok {
			n, ok = proxyNotes[first]
		}
		switch {
		case !ok:
			n = note{missing, "this is not known to the importer; see whether a route, listener or upstream has an equal"}
		case l.no:
			continue
		}
		p.c.out.Reports.Add(l.at, l.name(), n.fate, "%s", n.text)
	}
}
