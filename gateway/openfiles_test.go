package gateway_test

import (
	"testing"

	"github.com/headpond/headpond/gateway"
)

func TestOpenFilesCountsBothSides(t *testing.T) {
	cfg := parse(t, `
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo, max_conns: 500, max_queue: 7}
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: web, max_conns: 1000}
  - {name: more, protocol: http, listen: "127.0.0.1:0", upstream: web, max_conns: 1000}
upstreams:
  echo: {endpoints: ["127.0.0.1:1", "127.0.0.1:2"], pool: {min_idle: 3}}
  web: {endpoints: ["127.0.0.1:1", "127.0.0.1:2"], pool: {max_size: 30}}
`)
	if got, want := gateway.OpenFiles(cfg), uint64(100+501+1001+1001+500+60+7+2*1024+6); got != want {
		t.Errorf("%d, want %d", got, want)
	}
}
