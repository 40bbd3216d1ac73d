//go:build netns

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// upnpConfig is that of miniupnpd at the router of the site 10.0.1.0/24.
const upnpConfig = `
ext_ifname=wan
listening_ip=lan
port=5000
enable_upnp=yes
secure_mode=yes
upnp_table_name=upnp
upnp_nat_table_name=upnp
upnp_forward_chain=forwarded
upnp_nat_chain=mapped
upnp_nat_postrouting_chain=unmapped
allow 1024-65535 10.0.1.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
`

// upnpRules are the tables to which miniupnpd adds its rules.
const upnpRules = `
table inet upnp {
	chain forward { type filter hook forward priority 0; jump forwarded; }
	chain forwarded { }
	chain prerouting { type nat hook prerouting priority -100; jump mapped; }
	chain mapped { }
	chain postrouting { type nat hook postrouting priority 99; jump unmapped; }
	chain unmapped { }
}
`

// mapsPorts makes the router of a site forward ports to the machines that ask for it, as routers at home do.
func mapsPorts(t *testing.T, ns *namespace) {
	t.Helper()
	program, err := exec.LookPath("miniupnpd")
	if err != nil {
		t.Fatalf("%v: apt-get install miniupnpd-nftables", err)
	}
	router := &namespace{t, ns.name + routerSuffix}
	rules := exec.Command("ip", "netns", "exec", router.name, "nft", "-f", "-")
	rules.Stdin = strings.NewReader(upnpRules)
	if out, err := rules.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v %s", err, out)
	}
	file := filepath.Join(t.TempDir(), "miniupnpd.conf")
	if err := os.WriteFile(file, []byte(upnpConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &conntest.Log{}
	cmd := exec.Command("ip", "netns", "exec", router.name, program, "-d", "-f", file, "-P", filepath.Join(t.TempDir(), "pid"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("miniupnpd:\n%s", log)
		}
	})
	conntest.Eventually(t, "the router answers", func() bool {
		c, err := ns.dial(t.Context(), "tcp", "10.0.1.1:5000")
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// TestUPnP: a node behind NAT asks its router to forward a port, and another node connects to that, with no relay.
func TestUPnP(t *testing.T) {
	const farAt, nearAt = "11.0.0.2", "11.0.0.3"
	world := newInternet(t, oneWay, lost)
	program := built(t)
	far := newSite(t, program, behindNAT(t, world, "far", farAt, 1))
	near := newSite(t, program, newNamespace(t, "near"))
	world.attach(near.namespace, nearAt)
	mapsPorts(t, far.namespace)
	counter(far.namespace)
	far.start("peers: {key: node.key, listen: [/ip4/0.0.0.0/tcp/4001], upnp: true}\n" + offering(near.id))
	mapped := ""
	conntest.Eventually(t, "a port is forwarded", func() bool {
		for _, n := range far.status().Node {
			i := slices.IndexFunc(n.Addresses, func(a string) bool { return strings.Contains(a, farAt) })
			if i >= 0 {
				mapped = n.Addresses[i]
			}
		}
		return mapped != ""
	})
	t.Logf("the far node is reached at %s", mapped)
	near.start(fmt.Sprintf("peers: {key: node.key, listen: [], bootstrap: [%s]}\n%s", mapped, apiListens))
	var s *stream
	conntest.Eventually(t, "far answers", func() bool {
		s = near.open("http://127.0.0.1:8092/v1/service/web/count")
		return s != nil
	})
	s.read(20)
	if p := near.peer(far.id); p.Relayed || !strings.Contains(p.Path, farAt) {
		t.Errorf("%+v", p)
	}
}
