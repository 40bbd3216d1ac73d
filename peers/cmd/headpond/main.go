// Command headpond is the released program: the connection-pooling gateway of cmd/headpond, with peers, ACME, tracing and HTTP/3.
//
//	headpond demo                  everything on this machine, without a file
//	headpond serve headpond.yaml
//	headpond check headpond.yaml
//
// Exit codes: 0 done, 1 a problem, 2 wrong usage.
package main

import (
	"os"

	_ "github.com/headpond/headpond/acme"
	_ "github.com/headpond/headpond/http3"
	"github.com/headpond/headpond/internal/cli"
	_ "github.com/headpond/headpond/peers/extension"
	_ "github.com/headpond/headpond/tracing"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(version)) }
