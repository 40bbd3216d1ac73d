package protocols_test

import (
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
	_ "github.com/headpond/headpond/gateway/protocols"
)

// TestProgramWithoutHTTP3 says so. Module http3 tests one that has it.
func TestProgramWithoutHTTP3(t *testing.T) {
	for keys, want := range map[string]bool{"true": true, "{announce: never}": true, "false": false, "{enabled: false}": false} {
		_, problems := config.Parse("test.yaml", []byte(`
listeners: [{name: web, protocol: http, listen: "127.0.0.1:1", upstream: app, http: {http3: `+keys+`}}]
upstreams: {app: {endpoints: ["127.0.0.1:2"]}}
`))
		if said := strings.Contains(problems.String(), "test.yaml:2:"); said != want || want && !strings.Contains(problems.String(), "this program has no HTTP/3; the released one has it") {
			t.Errorf("http3: %s: %v", keys, problems)
		}
	}
}
