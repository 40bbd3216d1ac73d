//go:build !unix

package gateway

import (
	"runtime"

	"github.com/headpond/headpond/gateway/admin"
)

// processUse returns what the process may use: how much it does is not known here.
func processUse() admin.ProcessUse { return admin.ProcessUse{CPUs: runtime.GOMAXPROCS(0)} }
