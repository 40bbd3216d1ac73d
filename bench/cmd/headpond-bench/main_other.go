//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	code, ok := resultsCommand(os.Args[1:], os.Stdout, os.Stderr)
	if !ok {
		_, _ = fmt.Fprintf(os.Stderr, "headpond bench: measuring needs Linux: what processes cost is read from /proc, and the generator asks by epoll\n\n%s", usage)
		code = exitUsage
	}
	os.Exit(code)
}
