// Command headpond is a connection-pooling gateway for TCP, HTTP, PostgreSQL and SQLite.
//
//	headpond demo                  everything on this machine, without a file
//	headpond serve headpond.yaml
//	headpond check headpond.yaml
//
// Exit codes: 0 success, 1 failure, 2 wrong usage. The released program also links in the modules with heavy
// dependencies: see ARCHITECTURE.md.
package main

import (
	"os"

	"github.com/headpond/headpond/internal/cli"
)

// version is set by the linker.
var version string

func main() { os.Exit(cli.Main(version)) }
