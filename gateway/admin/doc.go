// Package admin is Headpond's interface for operators: a dashboard, Prometheus metrics, health and a JSON API on one
// HTTP address.
//
//	handler, err := admin.New(admin.Config{Snapshot: gw.Snapshot, LocalOnly: true})
//	if err != nil {
//		return err
//	}
//	http.Serve(l, handler)
//
// Everything shown comes from one function, Config.Snapshot, which reads the counters of the pools, upstreams and listeners.
//
//	GET  /               dashboard: one page without external assets, refreshed every second
//	GET  /metrics        Prometheus
//	GET  /livez          200 while every thread of the gateway answers; /healthz is the same
//	GET  /readyz         200 when every listener accepts connections, 503 while draining
//	GET  /api/v1/status  everything, as JSON (type Status)
//	GET  /api/v1/pools   the pools, as JSON: {"pools": [Pool, …]}
//	GET  /api/v1/sessions  the sessions that a query asks for, as JSON (type Sessions)
//	GET  /api/v1/KEY     the rows of a protocol or an extension, as JSON; see Report
//	POST /api/v1/reload  reads the configuration again; see Config.Reload
//	DELETE /api/v1/sessions/ID  ends a session; see Config.Kill
//	POST /api/v1/endpoints      changes an endpoint; see EndpointChange
//	POST /api/v1/pause, /api/v1/resume  pauses and resumes an upstream; see Pause
//	POST /api/v1/profile?kind=KIND      a profile of the program; see Profiles
//
// Readiness does not depend on the upstreams. When a backend is down for every gateway, taking the
// gateways out of service as well would only hide the cause. /readyz names such upstreams in its body,
// and /metrics has headpond_upstream_endpoint_healthy.
//
// # Safety
//
// The page's Content-Security-Policy allows only its own script and style, by hash, and the script writes values as
// text only, so that a hostile name in a configuration or an error message stays text. With Config.LocalOnly a request
// must name a loopback host, which stops web pages from reaching the address by DNS rebinding.
package admin
