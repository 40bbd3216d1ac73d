package tunnels_test

import (
	"fmt"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/tunnels"
)

func Example() {
	cfg, problems := config.Parse("far.yaml", []byte(`
listeners:
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:7443", tunnel: {psk: "sixteen bytes or more", allow: ["10.0.0.0/8:80"]}}
`))
	fmt.Print(problems)
	t := config.SectionOf[tunnels.Listener](&cfg.Listeners[0])
	fmt.Println(t.Allow, t.MaxSessions, t.PeerSessions)
	// Output:
	// [10.0.0.0/8:80] 256 64
}
