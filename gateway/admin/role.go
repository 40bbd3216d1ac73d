package admin

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headpond/headpond/upstream"
)

// roleTroubles returns sentences about endpoints that do not report their roles, and about a role that none has. While
// the upstream is paused, they are not asked.
func (u *UpstreamStatus) roleTroubles() (lines []string) {
	if u.PausedUntil != nil {
		return nil
	}
	if u.NoRole {
		lines = append(lines, fmt.Sprintf("upstream %s: no endpoint has the role that its target %s wants, clients wait for one", u.Name, u.Target))
	}
	for _, e := range u.Endpoints {
		if e.Role == upstream.UnknownRole.String() && e.State == stateHealthy && e.LastError != "" {
			lines = append(lines, fmt.Sprintf("upstream %s, endpoint %s does not report its role: %s", u.Name, e.Address, e.LastError))
		}
	}
	return lines
}

// collectRole sends one metric for each role that an endpoint can have, nothing with upstream.TargetAny.
func collectRole(ch chan<- prometheus.Metric, t upstream.Target, is upstream.Role, labels []string) {
	if t == upstream.TargetAny {
		return
	}
	for _, r := range []upstream.Role{upstream.UnknownRole, upstream.Primary, upstream.ReadOnlyPrimary, upstream.Standby} {
		send(ch, roleDesc, prometheus.GaugeValue, oneIf(r == is), append([]string{r.String()}, labels...)...)
	}
}
