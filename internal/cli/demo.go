package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/demo"
)

// peersDemo is `headpond demo -peers`; nil: the program is linked without peers.
var peersDemo func(stdout, stderr io.Writer, version string, portOffset int) error

// RegisterPeersDemo makes run the demo of nodes, `headpond demo -peers`. run returns when a signal has ended it. Call it in an init function.
func RegisterPeersDemo(run func(stdout, stderr io.Writer, version string, portOffset int) error) {
	peersDemo = run
}

// runPeersDemo runs that demo. alone reports whether the flags are those that it has.
func runPeersDemo(e env, portOffset int, alone bool) int {
	switch {
	case peersDemo == nil:
		_, _ = fmt.Fprintln(e.stderr, "headpond demo: this program has no peers; the released one has (make build)")
		return exitUsage
	case !alone:
		_, _ = fmt.Fprintln(e.stderr, "headpond demo: -peers goes with -port-offset only")
		return exitUsage
	}
	if err := peersDemo(e.stdout, e.stderr, version, portOffset); err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
		if errors.Is(err, gateway.ErrListen) {
			_, _ = fmt.Fprintln(e.stderr, "headpond: try other ports: headpond demo -peers -port-offset 1000")
		}
		return exitProblem
	}
	return exitOK
}

// runDemo is `headpond demo`.
func runDemo(e env, args []string) int {
	fs := flags("demo", "", "Runs a gateway with a SQLite database, two HTTP backends and an echo server behind it, all on this machine.")
	data := fs.String("data", "", "`folder` for the database, created if missing and kept (default: a temporary one)")
	offset := fs.Int("port-offset", 0, "`number` added to the ports 6432, 7000, 8080 and 9090; with -peers 8092 and 9090")
	show := fs.Bool("print-config", false, "print the configuration file the demo runs, and do not run it")
	nodes := fs.Bool("peers", false, "run three nodes instead, two with a mock of a language model, one of which is reached through a relay")
	if _, code, ok := parse(e, fs, args, 0, "takes no arguments"); !ok {
		return code
	}
	if *nodes {
		return runPeersDemo(e, *offset, *data == "" && !*show)
	}
	d, err := demo.Start(demo.Options{Data: *data, PortOffset: *offset})
	if err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
		return exitProblem
	}
	defer d.Close()
	if *show {
		_, _ = fmt.Fprint(e.stdout, d.YAML)
		return exitOK
	}
	code, portTaken := runGateway(e, d.Config, control{started: func(gw *gateway.Gateway) { _, _ = fmt.Fprintln(e.stdout, d.Lines(gw.Addr)) }})
	if portTaken {
		_, _ = fmt.Fprintln(e.stderr, "headpond: try other ports: headpond demo -port-offset 1000")
	}
	return code
}
