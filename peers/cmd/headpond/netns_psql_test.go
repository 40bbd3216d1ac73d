//go:build netns

package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// TestPsqlBehindNAT: psql behind one NAT uses a database behind another, through a relay, and then directly.
func TestPsqlBehindNAT(t *testing.T) {
	const hubAt, farAt, nearAt = "11.0.0.1", "11.0.0.2", "11.0.0.3"
	cluster := pgtest.Start(t) // which is reached by its socket in the file system from the far namespace, and from no other machine
	world := newInternet(t, oneWay, lost)
	program := built(t)
	hub := newSite(t, program, newNamespace(t, "hub"))
	world.attach(hub.namespace, hubAt)
	far := newSite(t, program, behindNAT(t, world, "far", farAt, 1))
	near := newSite(t, program, behindNAT(t, world, "near", nearAt, 2))
	world.cut(farAt, nearAt, true) // holes cannot be punched yet
	hub.start("peers: {key: node.key, relay_for: anyone, " + nodeListens + "}\n")
	far.start("peers: {key: node.key, " + nodeListens + ", bootstrap: " + at(hubAt, hub) + ", relays: " + at(hubAt, hub) + "}\n" +
		"services: {db: {upstream: pg, allow: [" + near.id + "]}}\nupstreams: {pg: {endpoints: [\"" + cluster.SocketAddr() + "\"]}}\n")
	near.start("peers: {key: node.key, " + nodeListens + ", bootstrap: " + at(hubAt, hub) + "}\n" +
		"listeners: [{name: db, protocol: tcp, listen: \"127.0.0.1:5432\", upstream: pg}]\nupstreams: {pg: {endpoints: [\"p2p:" + far.id + "/db\"]}}\n")
	conntest.Eventually(t, "near knows far", func() bool { return near.knows(far.id) })

	psql := func(what string) {
		t.Helper()
		cmd := exec.Command("ip", "netns", "exec", near.name, cluster.Bin("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
			"-h", "127.0.0.1", "-U", cluster.Superuser(), "postgres", "-c", "select sum(i) from generate_series(1, 100000) i", "-c", "select length(repeat('x', 3000000))")
		cmd.Env = append(cmd.Environ(), "PGPASSWORD="+cluster.Password(), "PGCONNECT_TIMEOUT=60")
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Join(strings.Fields(string(out)), " ") != "5000050000 3000000" {
			t.Fatalf("%s: %v\n%s", what, err, out)
		}
	}
	psql("relayed")
	if p := near.peer(far.id); !p.Relayed {
		t.Errorf("it is not relayed: %+v", p)
	}
	world.cut(farAt, nearAt, false)
	conntest.Eventually(t, "it is direct", func() bool { return !near.peer(far.id).Relayed })
	psql("direct")
}
