package gateway

import "github.com/headpond/headpond/gateway/config"

// engine is how sessions run in this version: a goroutine each.
const engine = "goroutine"

// engineReason says why that one.
func engineReason(asked config.Engine) string {
	if asked == config.EngineGoroutine {
		return "configured"
	}
	return "the only one of this version"
}
