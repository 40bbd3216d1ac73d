package integration

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// notFor are cases of h2spec that do not apply, and why.
var notFor = map[string]string{
	"plain/http2/3.5/2":   "what does not begin as HTTP/2 is HTTP/1.1 here, and answered in it",
	"plain/http2/5.3.1/1": "priorities are deprecated (RFC 9113, section 5.3.2), and not looked at",
	"plain/http2/5.3.1/2": "likewise",
	"tls/http2/5.3.1/1":   "likewise",
	"tls/http2/5.3.1/2":   "likewise",
}

// TestH2spec runs all other cases, including those of the strict mode, against a listener with TLS and one without.
func TestH2spec(t *testing.T) {
	backend := startHTTP(t)
	dir := t.TempDir()
	issue(t, dir, "ca", "web")
	plain, secure := address(t), address(t)
	startGateway(t, fmt.Sprintf(`listeners:
  - {name: plain, protocol: http, listen: "%s", upstream: api}
  - {name: secure, protocol: http, listen: "%s", upstream: api, tls: {cert: %s/ca-web.crt, key: %[3]s/ca-web.key}}
upstreams:
  api: {endpoints: ["%s"]}
`, plain, secure, dir, backend.addr()))
	for name, listen := range map[string]string{"plain": plain, "tls": secure} {
		host, port, err := net.SplitHostPort(listen)
		if err != nil {
			t.Fatal(err)
		}
		c := &config.Config{
			Host: host, Path: "/bytes/100", Timeout: patience, MaxHeaderLen: 4000, Strict: true, TLS: name == "tls", Insecure: true,
		}
		if c.Port, err = strconv.Atoi(port); err != nil {
			t.Fatal(err)
		}
		for _, g := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
			runH2spec(t, c, name, g)
		}
	}
}

func runH2spec(t *testing.T, c *config.Config, listener string, g *spec.TestGroup) {
	for i, tc := range append(g.Tests, g.StrictTests...) {
		name := fmt.Sprintf("%s/%s/%d", listener, g.ID(), i+1)
		if notFor[name] != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			conn, err := spec.Dial(c)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := tc.Run(c, conn); err != nil {
				t.Errorf("%s: %s: %s", tc.Desc, tc.Requirement, strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		})
	}
	for _, sub := range g.Groups {
		runH2spec(t, c, listener, sub)
	}
}
