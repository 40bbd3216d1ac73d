package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
)

// TestPauseAndResume by the command line, at a gateway with a client that holds a connection.
func TestPauseAndResume(t *testing.T) {
	gw := gatewaytest.Run(t, gatewaytest.Parse(t, `
admin: 127.0.0.1:0
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
upstreams:
  echo: {endpoints: ["{echo}"]}
`, "{echo}", conntest.Serve(t, conntest.Echo)))
	ctl := func(line string, code int, want ...string) {
		t.Helper()
		got, stdout, stderr := execute(append([]string{"ctl", "-admin", gw.Addr("admin")}, strings.Fields(line)...)...)
		out := stdout + stderr
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", line, w, out)
			}
		}
		if got != code {
			t.Errorf("%s: exit %d\n%s", line, got, out)
		}
	}
	holder := conntest.Dial(t, gw.Addr("raw"))
	conntest.Exchange(t, holder, "held")
	ctl("pause echo -wait 1ms", exitProblem, "paused upstream echo for 5m0s, or until 'headpond ctl resume echo'",
		"stays paused, but connections are still in use: 1; 'headpond ctl clients -upstream echo' shows by whom")
	ctl("status", exitOK, "TROUBLE\nupstream echo is paused by an operator until", "connections still in use: 1")
	_ = holder.Close()
	late := conntest.Dial(t, gw.Addr("raw"))
	if _, err := io.WriteString(late, "late"); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the new client waits", func() bool { return gw.Snapshot().Upstreams[0].Endpoints[0].Pool.Waiting == 1 })
	ctl("pause echo -for 1h -wait 1m", exitOK, "paused upstream echo for 1h0m0s", "no connection is in use; sessions that wait: 1\n")
	ctl("resume echo", exitOK, "resumed upstream echo\n")
	conntest.Want(t, late, "late")
	ctl("resume echo", exitProblem, "it is not paused")
	ctl("pause ecko", exitProblem, `did you mean "echo"?`)
	ctl("pause", exitUsage, "pause wants UPSTREAM")
	ctl("resume echo -for 1m", exitUsage, "-for is for pause only")
	ctl("pause echo -for 25h", exitUsage, "want a duration from 1s to 24h0m0s")
}
