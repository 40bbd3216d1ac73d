package tracing_test

import (
	"fmt"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/tracing"
)

func Example() {
	cfg, problems := config.Parse("example.yaml", []byte(`
tracing: {endpoint: "http://127.0.0.1:4318", sample: 10}
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:8080", upstream: app}
upstreams:
  app: {endpoints: ["127.0.0.1:9000"]}
`))
	fmt.Print(problems)
	s := config.PartOf[tracing.FileKeys](cfg).Tracing
	fmt.Println(s.Endpoint, s.Sample, s.Parents, s.Service)
	// Output:
	// http://127.0.0.1:4318 10 follow headpond
}
