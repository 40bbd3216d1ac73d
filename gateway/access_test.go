package gateway_test

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// TestSourcesOfEveryProtocol: allow and deny work for listeners of every protocol, and a reload changes them.
func TestSourcesOfEveryProtocol(t *testing.T) {
	const text = `
drain_timeout: 10s
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: web, deny: [{denied}]}
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: db, max_connections_per_source: 1, connection_rate: {connections: 1000}}
upstreams:
  web: {endpoints: ["{web}"]}
  db: {endpoints: ["127.0.0.1:1"], postgres: {user: app, password: x}}
`
	web := webServer(t, "here")
	gw := run(t, parse(t, text, "{web}", web, "{denied}", "127.0.0.0/8"))
	conntest.WantRefused(t, gw.Addr("web"))
	if err := gw.Reload(parse(t, text, "{web}", web, "{denied}", "10.0.0.0/8")); err != nil {
		t.Fatal(err)
	}
	if _, body, err := get(client(t), "http://"+gw.Addr("web")+"/"); body != "here" || err != nil {
		t.Errorf("%q %v", body, err)
	}
	startup := append([]byte{0, 0, 0, 0, 0, 3, 0, 0}, "user\x00app\x00database\x00shop\x00\x00"...)
	binary.BigEndian.PutUint32(startup, uint32(len(startup)))
	conntest.Dial(t, gw.Addr("db"))
	conntest.Eventually(t, "the first client", func() bool { return active(gw.Snapshot().Listeners, "db") == 1 })
	second := conntest.Dial(t, gw.Addr("db"))
	if _, err := second.Write(startup); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(second)
	if err != nil || !strings.Contains(string(answer), "C53300\x00") || !strings.Contains(string(answer), "raise max_connections_per_source") {
		t.Errorf("the second client got %q, %v", answer, err)
	}
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	other, err := from.Dial("tcp", gw.Addr("db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	conntest.Eventually(t, "a client from elsewhere", func() bool { return active(gw.Snapshot().Listeners, "db") == 2 })
	for _, l := range gw.Snapshot().Listeners {
		want := map[string]string{"web": listener.ReasonDenied, "db": listener.ReasonSourceFull}[l.Name]
		if l.Errors[want] != 1 || l.Rejected != 1 {
			t.Errorf("listener %s: errors %v, rejected %d; want one for %s", l.Name, l.Errors, l.Rejected, want)
		}
	}
}

// active returns the number of sessions of a listener.
func active(all []listener.Stats, name string) int {
	for _, l := range all {
		if l.Name == name {
			return l.Active
		}
	}
	return -1
}
