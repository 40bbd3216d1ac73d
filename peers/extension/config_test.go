package extension_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/cli"
	"github.com/headpond/headpond/peers"
)

const someID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"

// TestMistakesInTheFile: each is reported where it was written, with what to write instead.
func TestMistakesInTheFile(t *testing.T) {
	dir := t.TempDir()
	exposed := filepath.Join(dir, "exposed.key")
	if err := os.WriteFile(exposed, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	const upstream = "\nupstreams: {db: {endpoints: [\"127.0.0.1:5432\"]}}"
	for text, want := range map[string]string{
		`peers: {}`:                                             `p.yaml:1:8: "key" is missing`,
		`peers: {kye: a}`:                                       `p.yaml:1:9: unknown key "kye"; did you mean "key"?`,
		`peers: {key: exposed.key}`:                             `p.yaml:1:14: key: `,
		`peers: {key: k, listen: [a]}`:                          `p.yaml:1:26: listen: "a": want an address such as /ip4/0.0.0.0/tcp/4001`,
		`peers: {key: k, keep_alive: 1ms}`:                      `p.yaml:1:29: keep_alive: "1ms": out of range; want 1s to 1h0m0s`,
		`peers: {key: k, network_key: abc}`:                     `p.yaml:1:30: network_key: want 64 hexadecimal digits`,
		`peers: {key: k, bootstrap: [/ip4/192.0.2.1/tcp/4001]}`: `p.yaml:1:29: bootstrap: "/ip4/192.0.2.1/tcp/4001": the peer's ID is missing`,
		`peers: {key: k, listen: [/ip4/0.0.0.0/udp/4001]}`:      `did you mean "/ip4/0.0.0.0/udp/4001/quic-v1"?`,
		`peers: {key: k, listen: [/ip4/0.0.0.0/tcp/4001, /ip4/0.0.0.0/tcp/4001]}`: `p.yaml:1:49: listen: "/ip4/0.0.0.0/tcp/4001" is there already`,
		`peers: {key: k, dht: 1}`:                                                                  `p.yaml:1:22: dht: "1": want true or false`,
		`peers: {key: k, dht: true, max_connections: 100}`:                                         `p.yaml:1:45: max_connections: 100 is too few with "dht"; want at least 128`,
		`peers: {key: k, announce: [gw.example.com:4001]}`:                                         `p.yaml:1:28: announce: "gw.example.com:4001": want an address such as`,
		`peers: {key: k, network_key: "{hex}", listen: [/ip4/0.0.0.0/udp/4001/quic-v1]}`:           `QUIC cannot be used in a private network`,
		`services: {db: {upstream: db}}` + upstream:                                                `p.yaml:1:12: services are offered to other nodes, and this gateway is none: "peers" is missing`,
		"peers: {key: k}\nservices: {db: {}}":                                                      `p.yaml:2:16: service "db": "upstream" is missing`,
		"peers: {key: k}\nservices: {db: {upstream: dbx}}" + upstream:                              `p.yaml:2:27: service "db": unknown upstream "dbx"; did you mean "db"?`,
		"peers: {key: k}\nservices: {db: {upstream: db}}" + upstream:                               `p.yaml:2:12: warning: service "db": no peer may call it`,
		"peers: {key: k}\nservices: {db: {upstream: db, allow: anyone}}" + upstream:                `p.yaml:2:38: warning: service "db": allow: anyone: every program that can reach this node`,
		"peers: {key: k}\nservices: {db: {upstream: db, allow: anyoen}}" + upstream:                `did you mean "anyone"?`,
		"peers: {key: k}\nservices: {db: {upstream: db, allow: [bob]}}" + upstream:                 `want a peer ID such as 12D3KooW`,
		"peers: {key: k}\nservices: {db: {upstream: db, per_peer: {rate: -1}}}" + upstream:         `p.yaml:2:48: service "db": rate: "-1": out of range; want 0 to 1000000`,
		"peers: {key: k}\nservices: {db: {upstream: db, models: v1/models}}" + upstream:            `p.yaml:2:39: service "db": models: "v1/models": want a path such as /v1/models`,
		"peers: {key: k}\nservices: {db: {upstream: db, models: http://h/v1}}" + upstream:          `models: "http://h/v1": want a path such as /v1/models`,
		"peers: {key: k}\nservices: {1: {upstream: db, allow: [" + someID + "]}}" + upstream:       `the name of a service cannot be a number`,
		"peers: {key: k}\nservices: {a: {upstream: db, allow: [{id}, {id}]}}" + upstream:           `is there already`,
		listening("p2p:" + someID + "/db"):                                                         `is a service of another node, and this gateway is none: "peers" is missing`,
		"peers: {key: k}\n" + listening("p2p:"+someID):                                             `the service is missing after the peer ID`,
		"peers: {key: k}\n" + listening("p2p:bob/db"):                                              `"bob" is no peer ID`,
		"peers: {key: k}\n" + listening("p2p:"+someID+"/"):                                         `the name of the service is missing`,
		"peers: {key: k}\n" + listening("p2p:"+someID+"/db") + "\n    tls: {}":                     `"server_name" is missing: the host behind endpoint`,
		"peers: {key: k}\n" + listening("p2p:"+someID+"/db") + "\n    pool: {min_idle: 2}":         `min_idle: nothing is gained by opening connections to another node ahead of demand`,
		"peers: {key: k}\n" + listening("p2p:"+someID+"/db") + "\n  t: {endpoints: [\"p2p:x/y\"]}": `"x" is no peer ID`,
		"peers: {key: k}\n" + listening("p2p:db"):                                                  `p.yaml:5:17: warning: upstream "far": endpoint "p2p:db": every node of the network can offer a service by that name and gets these connections; list peer IDs under "providers"`,
		"peers: {key: k}\n" + listening("p2p:db") + "\n    providers: [bob]":                       `want a peer ID such as 12D3KooW`,
		"peers: {key: k}\n" + listening("p2p:db") + "\n    providers: [{id}, {id}]":                `p.yaml:6:71: upstream "far": providers: "{id}" is there already`,
		"peers: {key: k}\n" + listening("p2p:{id}/db") + "\n    providers: {id}":                   `providers: the upstream has no endpoint "p2p:SERVICE"`,
	} {
		want = strings.ReplaceAll(want, "{id}", someID)
		text = strings.NewReplacer("{id}", someID, "{hex}", strings.Repeat("0123456789abcdef", 4)).Replace(text)
		_, problems := config.Parse("p.yaml", []byte(text))
		if got := problems.String(); !strings.Contains(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
	for _, text := range []string{"peers: {key: node.key}", "peers: {key: k}\n" + listening("p2p:db") + "\n    providers: " + someID} {
		if _, problems := config.Parse("p.yaml", []byte(text)); problems != nil {
			t.Error(problems)
		}
	}
	if left, _ := filepath.Glob("*"); len(left) != 1 {
		t.Errorf("a check has made something: %v", left)
	}
}

// listening is a listener with an upstream of one endpoint.
func listening(endpoint string) string {
	return "listeners: [{name: raw, protocol: tcp, listen: \"127.0.0.1:0\", upstream: far}]\nupstreams:\n  far:\n    endpoints: [\"" + endpoint + "\"]"
}

// TestPeersID: the command makes the key, and prints the ID that it has ever after.
func TestPeersID(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "p.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, err bytes.Buffer
		code = cli.Run(&out, &err, append([]string{"peers"}, args...))
		return code, out.String(), err.String()
	}
	write("peers: {key: sub.key}")
	code, first, stderr := run("id", file)
	key, err := peers.LoadKey(filepath.Join(dir, "sub.key"))
	if err != nil || code != 0 || !strings.Contains(stderr, "made ") {
		t.Fatal(code, stderr, err)
	}
	if id, _ := peers.IDOf(key); id+"\n" != first {
		t.Errorf("%q, want %q", first, id)
	}
	if code, again, stderr := run("id", file); code != 0 || again != first || stderr != "" {
		t.Error(code, again, stderr)
	}
	for want, args := range map[string][]string{
		"unknown action": {"di", file}, `did you mean "headpond demo -peers"`: {"demo"}, "id has 0 arguments, want 1": {"id"}, "cannot read": {"id", filepath.Join(dir, "none.yaml")},
	} {
		if code, _, stderr := run(args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
	write("listeners: []\nupstreams: {}\n")
	if code, _, stderr := run("id", file); code != 1 {
		t.Error(code, stderr)
	}
}
