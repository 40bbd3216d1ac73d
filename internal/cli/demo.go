package cli

import (
	"fmt"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/demo"
)

// runDemo is `headpond demo`.
func runDemo(e env, args []string) int {
	fs := flags("demo", "", "Runs a gateway with a SQLite database, two HTTP backends and an echo server behind it, all on this machine.")
	data := fs.String("data", "", "`folder` for the database, created if missing and kept (default: a temporary one)")
	offset := fs.Int("port-offset", 0, "`number` added to the ports 6432, 7000, 8080 and 9090")
	show := fs.Bool("print-config", false, "print the configuration file the demo runs, and do not run it")
	if _, code, ok := parse(e, fs, args, 0, "takes no arguments"); !ok {
		return code
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
	code, portTaken := runGateway(e, d.Config, nil, nil, func(gw *gateway.Gateway) { _, _ = fmt.Fprintln(e.stdout, d.Lines(gw.Addr)) })
	if portTaken {
		_, _ = fmt.Fprintln(e.stderr, "headpond: try other ports: headpond demo -port-offset 1000")
	}
	return code
}
