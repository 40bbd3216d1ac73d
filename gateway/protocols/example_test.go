package protocols_test

import (
	"fmt"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/protocols"
)

func Example() {
	cfg, problems := config.Parse("example.yaml", []byte(`
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:8080", http: {routes: [{path: /api, upstream: api}]}}
upstreams:
  api: {endpoints: ["127.0.0.1:9000"]}
`))
	fmt.Print(problems)
	for _, r := range config.SectionOf[protocols.HTTPListener](&cfg.Listeners[0]).Routes {
		fmt.Println(r.Path, r.Upstream, r.Timeout)
	}
	// Output:
	// /api api 1m0s
}
