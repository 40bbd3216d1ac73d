package sources_test

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/headpond/headpond/gateway/config"
	_ "github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/upstream"
)

// Ports is a source of another package: some ports of one host.
type Ports struct {
	Host  string `conf:"host" required:"true"`
	First int    `conf:"first" default:"9000" min:"1" max:"65000"`
	Count int    `conf:"count" default:"1" min:"1" max:"100"`
}

// Watch implements upstream.Source.
func (p *Ports) Watch(ctx context.Context, report func([]upstream.Endpoint, error) error) {
	var set []upstream.Endpoint
	for i := range p.Count {
		set = append(set, upstream.Endpoint{Address: net.JoinHostPort(p.Host, strconv.Itoa(p.First+i))})
	}
	_ = report(set, nil)
	<-ctx.Done()
}

func (p *Ports) String() string { return "ports of " + p.Host }

func init() {
	config.RegisterSource(config.SourceKind{
		Name: "ports", Section: &Ports{}, Scalar: "Host",
		New: func(u *config.Upstream) (upstream.Source, error) { return config.DiscoverAs[Ports](u), nil },
	})
}

// A source that another package adds has its own keys, checked as all others.
func Example() {
	const text = `
listeners: [{name: web, protocol: tcp, listen: "127.0.0.1:8080", upstream: web}]
upstreams: {web: {discover: {ports: {host: 10.0.0.1, %s: 2}}}}
`
	_, problems := config.Parse("web.yaml", fmt.Appendf(nil, text, "cuont"))
	fmt.Print(problems)
	cfg, _ := config.Parse("web.yaml", fmt.Appendf(nil, text, "count"))
	source, _ := cfg.Upstreams[0].Source()
	ctx, cancel := context.WithCancel(context.Background())
	source.Watch(ctx, func(set []upstream.Endpoint, _ error) error {
		fmt.Println(source, set[0].Address, set[1].Address)
		cancel()
		return nil
	})
	// Output:
	// web.yaml:3:54: upstream "web": unknown key "cuont"; did you mean "count"?
	// ports of 10.0.0.1 10.0.0.1:9000 10.0.0.1:9001
}
