package cli

import (
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
)

// TestEndpointsAreChangedAndShown by the command line, at a gateway.
func TestEndpointsAreChangedAndShown(t *testing.T) {
	one, two := conntest.Serve(t, conntest.Echo), conntest.Serve(t, conntest.Echo)
	gw := gatewaytest.Run(t, gatewaytest.Parse(t, `
admin: 127.0.0.1:0
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
upstreams:
  echo: {endpoints: ["{one}"]}
`, "{one}", one))
	for _, c := range []struct {
		args, stdout, stderr string
		code                 int
	}{
		{"add echo " + two + " -weight 3 -keep", "added " + two + " of upstream echo\n", "", exitOK},
		{"weight echo " + one + " 7", "weight 7 for " + one, "", exitOK},
		{"drain echo " + two, "draining " + two, "", exitOK},
		{"drain echo " + one, "", "last endpoint", exitProblem},
		{"drain ecko " + one, "", `did you mean "echo"?`, exitProblem},
		{"remove echo " + one[:len(one)-1], "", `did you mean "` + one + `"?`, exitProblem},
		{"darin echo " + one, "", `did you mean "drain"?`, exitUsage},
		{"drain echo", "", "drain wants UPSTREAM ADDRESS\n", exitUsage},
		{"weight echo " + one, "", "weight wants UPSTREAM ADDRESS WEIGHT\n", exitUsage},
		{"weight echo " + one + " 0", "", "from 1 to 65535", exitUsage},
		{"drain echo " + one + " -weight 3", "", "-weight is for endpoint add", exitUsage},
		{"add echo x:1 -priority high", "", "want a number up to 65535", exitUsage},
		{"", "", "want endpoint add|drain|remove|weight", exitUsage},
	} {
		args := append([]string{"ctl", "endpoint"}, strings.Fields(c.args)...)
		code, stdout, stderr := execute(append(args, "-admin", gw.Addr("admin"))...)
		if code != c.code || !strings.HasPrefix(stdout, c.stdout) || (c.stdout == "") != (stdout == "") || !strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") {
			t.Errorf("%s: exit %d\n%s%s", c.args, code, stdout, stderr)
		}
	}
	code, stdout, stderr := execute("ctl", "status", "-admin", gw.Addr("admin"))
	if want := "\nCHANGED BY OPERATORS\nupstream echo, endpoint " + one + ": weight 7, until the next reload\nupstream echo, endpoint " + two + ": drained, until the next reload\n"; code != exitOK || !strings.Contains(stdout, want) {
		t.Errorf("exit %d, no %q in\n%s%s", code, want, stdout, stderr)
	}
	if code, _, stderr := execute("ctl", "endpoint", "weight", "echo", one, "default", "-admin", gw.Addr("admin")); code != exitOK {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if code, _, stderr := execute("ctl", "status", "-keep"); code != exitUsage || !strings.Contains(stderr, "-keep is for endpoint only") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
}
