// Package kube is a source of endpoints for package upstream: the endpoints in the EndpointSlices of a Kubernetes
// Service.
//
//	source, err := kube.New(kube.Config{Cache: "/var/lib/headpond/apiservers.json"}) // in a pod, of the API servers
//	if err != nil {
//		return err
//	}
//	up, err := tcpproxy.NewUpstream("apiservers", tcpproxy.UpstreamOptions{Settings: upstream.Settings{Source: source}})
//
// The source lists the slices, and then watches them. When a watch ends, the next one continues where it ended; if the
// API server no longer knows that version, the source lists the slices again. Kubeconfig, certificates and tokens are
// read for each request, because they may be replaced at any time.
//
// # Which endpoints
//
// Ready endpoints have Priority 0. Endpoints that are terminating and still serve have a later priority, so that they
// are used only if no ready one works; all others are left out. With PreferZone, endpoints of other zones come after
// those of that zone. A Service without a usable endpoint is an error: the Upstream keeps its last set.
//
// # At the start
//
// The file Cache holds the last good set, which is used until the API has answered, so that the API may be reached
// through the Upstream that has this source. Bootstrap is used if the file does not exist yet, or if no address in it
// works.
//
// The package uses net/http and decodes the few fields that it needs, instead of client-go, which would be larger than
// the rest of the gateway.
//
// Unstable until 1.0.
package kube
