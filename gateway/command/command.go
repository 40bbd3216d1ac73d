// Package command is the program headpond, with all of its commands, for programs that add protocols, sources or other
// parts to the gateway. This program has the listener protocol of example.com/quotes besides those of every gateway:
//
//	package main
//
//	import (
//		"os"
//
//		_ "example.com/quotes"
//		"github.com/headpond/headpond/gateway/command"
//	)
//
//	func main() { os.Exit(command.Main("1.2.3")) }
//
// Unlike a program that only calls gateway.Run it has check, ctl and top, reloads at SIGHUP or by serve -watch, upgrades
// without refusing a client, and tells systemd how it is.
package command

import (
	"io"

	"github.com/headpond/headpond/internal/cli"
)

// Main runs the command named by the arguments of the process and returns the exit code for os.Exit: 0 done, 1 a problem,
// 2 wrong usage, and those that the help of a command lists. It handles the process's signals. version is what logs and
// "headpond version" show; empty means that of Go's build information. Call it once, from main.
func Main(version string) int { return cli.Main(version) }

// Run runs the command that args name, such as "check" and a file, for tests of a program. It returns the exit code.
func Run(stdout, stderr io.Writer, args ...string) int { return cli.Run(stdout, stderr, args) }
