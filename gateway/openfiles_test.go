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

// TestClientsLeaveFilesForBackends: as many as the pools allow, or one for each client if those are fewer.
func TestClientsLeaveFilesForBackends(t *testing.T) {
	const text = `
listeners: [{name: web, protocol: http, listen: "127.0.0.1:0", upstream: web}]
upstreams: {web: {endpoints: ["127.0.0.1:1", "127.0.0.1:2"], pool: {POOL}}}
`
	for pool, want := range map[string]int{
		"max_size: 30":                   1000 - 101 - 60,
		"max_size: 1000":                 (1000 - 101) / 2,
		"max_size: 1000, min_idle: 100":  (1000 - 101 - 200) / 2,
		"max_size: 30, overflow: direct": (1000 - 101) / 2,
	} {
		if got := gateway.ClientsWithin(1000, parse(t, text, "POOL", pool)); got != want {
			t.Errorf("%s: %d, want %d", pool, got, want)
		}
	}
	if got := gateway.ClientsWithin(64, parse(t, text, "POOL", "max_size: 30")); got != 1 {
		t.Errorf("next to no files: %d", got)
	}
}
