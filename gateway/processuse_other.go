//go:build !unix

package gateway

import (
	"runtime"

	"github.com/headpond/headpond/gateway/admin"
)

// processUse returns what the process may use. How much it uses is not known on this system.
func processUse() admin.ProcessUse { return admin.ProcessUse{CPUs: runtime.GOMAXPROCS(0)} }
