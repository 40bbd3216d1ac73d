//go:build !linux && !darwin

package gateway

import "github.com/headpond/headpond/gateway/config"

// checkOpenFiles does nothing: the system has no such limit, or none that can be read.
func (g *Gateway) checkOpenFiles(*config.Config) {}
