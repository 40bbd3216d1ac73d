package acme_test

import (
	"fmt"

	_ "github.com/headpond/headpond/acme"
	"github.com/headpond/headpond/gateway/config"
)

// A gateway that obtains the certificate of www.example.com. Let's Encrypt checks the name at the http listener.
func Example() {
	cfg, problems := config.Parse("gateway.yaml", []byte(`
acme: {agree: true, email: ops@example.com, storage: /var/lib/headpond/acme}
listeners:
  - {name: plain, protocol: http, listen: ":80", http: {routes: [{redirect: "https://{host}{uri}"}]}}
  - {name: web, protocol: http, listen: ":443", upstream: app, tls: {acme: www.example.com}}
upstreams:
  app: {endpoints: ["127.0.0.1:3000"]}
`))
	fmt.Println(cfg.Listeners[1].TLS.ACME, len(problems))
	// Output: [www.example.com] 0
}
