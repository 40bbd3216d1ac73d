// Command routevet finds contexts of package route that outlive their handlers:
//
//	go install github.com/headpond/headpond/cmd/routevet@latest
//	routevet ./...
//	go vet -vettool=$(which routevet) ./...
//
// The documentation of package escape lists its findings.
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"github.com/headpond/headpond/cmd/routevet/escape"
)

func main() { singlechecker.Main(escape.Analyzer) }
