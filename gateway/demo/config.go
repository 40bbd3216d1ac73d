package demo

import (
	"fmt"
	"strconv"
	"strings"
)

// configText is the demo's configuration file.
func configText(o Options, database string, web []string, model, echo string) string {
	listen := func(port int) string {
		if o.AnyPort {
			return "127.0.0.1:0"
		}
		return fmt.Sprintf("127.0.0.1:%d", port+o.PortOffset)
	}
	return strings.NewReplacer(
		"{admin}", listen(AdminPort), "{postgres}", listen(PostgresPort), "{http}", listen(HTTPPort), "{tcp}", listen(TCPPort),
		"{database}", strconv.Quote(strings.ReplaceAll("sqlite:"+database, "${", "$${")),
		"{blue}", web[0], "{green}", web[1], "{model}", model, "{echo}", echo,
	).Replace(`# What headpond demo runs.
admin: {admin}
drain_timeout: 3s
listeners:
  - name: db
    protocol: postgres
    listen: {postgres}
    upstream: sqlite
    max_conns: 1000
    postgres: {auth: trust}
  - name: web
    protocol: http
    listen: {http}
    upstream: web
    max_conns: 1000
    http: {routes: [{path: /v1, upstream: llm, llm: {include_usage: true}}]}
  - name: echo
    protocol: tcp
    listen: {tcp}
    upstream: echo
    max_conns: 1000
upstreams:
  sqlite:
    endpoints: [{database}]
    pool: {min_idle: 1}
  web:
    endpoints: ["{blue}", "{green}"]
    health: {http: /healthz}
    pool: {min_idle: 1, max_size: 64}
  llm:
    endpoints: ["{model}"]
    health: {http: /health}
  echo:
    endpoints: ["{echo}"]
    pool: {min_idle: 2, max_size: 1000}
`)
}
