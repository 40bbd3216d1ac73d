package gateway_test

import (
	"strings"
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
	if got, want := gateway.OpenFiles(cfg), uint64(100+501+1001+1001+500+60+7+2*1024+64); got != want {
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

// TestRoomOfDatagrams: sessions that forged addresses begin take no room of clients with connections.
func TestRoomOfDatagrams(t *testing.T) {
	const tcp, udp = `{name: a, protocol: tcp, listen: "127.0.0.1:0", upstream: a}`, `{name: b, protocol: udp, listen: "127.0.0.1:0", upstream: b}`
	for listeners, want := range map[string][2]int{
		tcp: {1000, 1000}, udp: {1000, 1000}, tcp + ", " + udp: {500, 1000},
	} {
		text := "listeners: [" + listeners + "]\nupstreams:\n"
		for _, name := range []string{"a", "b"} {
			if strings.Contains(listeners, "upstream: "+name) {
				text += "  " + name + `: {endpoints: ["127.0.0.1:1"]}` + "\n"
			}
		}
		if connections, sessions := gateway.RoomsFor(1000, parse(t, text)); [2]int{connections, sessions} != want {
			t.Errorf("%s: %d and %d, want %v", listeners, connections, sessions, want)
		}
	}
	if connections, sessions := gateway.RoomsFor(0, parse(t, "listeners: ["+tcp+", "+udp+"]\nupstreams: {a: {endpoints: [\"127.0.0.1:1\"]}, b: {endpoints: [\"127.0.0.1:1\"]}}\n")); connections != 0 || sessions != 0 {
		t.Errorf("without a limit: %d and %d", connections, sessions)
	}
}
