package extension_test

import (
	"fmt"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/peers/extension"
)

func Example() {
	cfg, problems := config.Parse("node.yaml", []byte(`
peers: {key: node.key, bootstrap: [/dns4/gw.example.com/tcp/4001/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp]}
services:
  llm: {upstream: ollama, allow: 12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp}
upstreams:
  ollama: {endpoints: ["127.0.0.1:11434"], health: {http: /v1/models}}
`))
	fmt.Print(problems)
	keys := config.PartOf[extension.FileKeys](cfg)
	fmt.Println(keys.Peers.KeepAlive, keys.Peers.MaxConnections, keys.Services[0].Name, len(keys.Services[0].Allow))
	// Output:
	// 3s 512 llm 1
}
