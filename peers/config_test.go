package peers_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/peers"
)

const someID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"

func TestConfigurationsThatAreRefused(t *testing.T) {
	key := newKey(t)
	for want, cfg := range map[string]peers.Config{
		"want an Ed25519 key":               {},
		"failed to parse multiaddr":         {Key: key, Listen: []string{"/ip4"}},
		`did you mean "/ip4/127.0.0.1/udp/`: {Key: key, Listen: []string{"/ip4/127.0.0.1/udp/4001"}},
		"QUIC cannot be used in a private":  {Key: key, NetworkKey: make([]byte, 32), Listen: []string{"/ip4/127.0.0.1/udp/4001/quic-v1"}},
		"want /ip4/ADDRESS/tcp/PORT":        {Key: key, Listen: []string{"/ip4/127.0.0.1/tcp/4001/p2p/" + someID}},
		"the peer's ID is missing":          {Key: key, Bootstrap: []string{"/ip4/127.0.0.1/tcp/4001"}},
		"the address is missing":            {Key: key, Bootstrap: []string{"/p2p/" + someID}},
		"want an address such as":           {Key: key, Bootstrap: []string{"127.0.0.1:4001"}},
		"NetworkKey has 3 bytes, want 32":   {Key: key, NetworkKey: []byte("key")},
		"MaxConns is 7":                     {Key: key, MaxConns: 7},
		"want at least 128 with DHT":        {Key: key, MaxConns: 100, DHT: true},
		"MaxMemory is 1":                    {Key: key, MaxMemory: 1},
		"KeepAlive is 1ms":                  {Key: key, KeepAlive: time.Millisecond},
		"MaxStreams is 9000":                {Key: key, MaxStreams: 9000},
		"DialTimeout -1s":                   {Key: key, DialTimeout: -time.Second},
		"the name of the service is miss":   {Key: key, Services: []peers.Service{{}}},
		`' ' cannot be in the name`:         {Key: key, Services: []peers.Service{{Name: "a b"}}},
		"has no Connect":                    {Key: key, Services: []peers.Service{{Name: "a"}}},
		"is there twice":                    {Key: key, Services: []peers.Service{to("a", "127.0.0.1:1"), to("a", "127.0.0.1:1")}},
		"want a path such as /v1/models":    {Key: key, Services: []peers.Service{{Name: "a", Models: "v1"}}},
		`"bob" is no peer ID`:               {Key: key, Services: []peers.Service{to("a", "127.0.0.1:1", "bob")}},
	} {
		n, err := peers.New(cfg)
		if !errors.Is(err, peers.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if n != nil {
			n.Close()
		}
	}
}

func TestNetworkKeys(t *testing.T) {
	digits := strings.Repeat("0123456789abcdef", 4)
	plain, err := peers.ParseNetworkKey(digits + "\n")
	if err != nil || len(plain) != 32 {
		t.Fatal(plain, err)
	}
	file, err := peers.ParseNetworkKey("/key/swarm/psk/1.0.0/\n/base16/\n" + digits + "\n")
	if err != nil || string(file) != string(plain) {
		t.Error(file, err)
	}
	for _, text := range []string{"", "0123", digits + "00", "/key/swarm/psk/1.0.0/\n/base16/\n0123", strings.Repeat("z", 64)} {
		if _, err := peers.ParseNetworkKey(text); err == nil {
			t.Errorf("%q is taken for a key", text)
		} else if len(text) > 10 && strings.Contains(err.Error(), text[len(text)-8:]) {
			t.Errorf("the error tells the key: %v", err)
		}
	}
}

func TestTargets(t *testing.T) {
	target, err := peers.ParseTarget(someID + "/llm")
	if err != nil || target.Service != "llm" || target.String() != someID+"/llm" {
		t.Error(target, err)
	}
	if target, err = peers.ParseTarget("llm"); err != nil || target.Peer != "" || target.String() != "llm" {
		t.Error(target, err)
	}
	for _, text := range []string{"", "x/llm", "a b", "12", someID, someID + "/", someID + "/a b", someID + "/12", someID + "/" + strings.Repeat("a", 65)} {
		if _, err := peers.ParseTarget(text); err == nil {
			t.Errorf("%q is taken for a target", text)
		}
	}
}
