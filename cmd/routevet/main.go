// Command routevet finds contexts of package route that outlive their handlers:
//
//	go install github.com/headpond/headpond/cmd/routevet@latest
//	routevet ./...
//	go vet -vettool=$(which routevet) ./...
//
// What it looks for is in the documentation of package escape.
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"github.com/headpond/headpond/cmd/routevet/escape"
)

func main() { singlechecker.Main(escape.Analyzer) }
