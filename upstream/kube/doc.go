// Package kube is a source of endpoints for package upstream: the endpoints in the EndpointSlices
// of a Kubernetes Service.
//
//	source, err := kube.New(kube.Config{Cache: "/var/lib/headpond/apiservers.json"}) // in a pod, of the API servers
//	if err != nil {
//		return err
//	}
//	up, err := tcpproxy.NewUpstream("apiservers", tcpproxy.UpstreamOptions{Settings: upstream.Settings{Source: source}})
//
// The source lists the slices, and watches them from there on. A watch that ends is continued where
// it ended; if the API server has forgotten that version, it begins with a list again. Kubeconfig,
// certificates and tokens are read for each request, because they are replaced while they are used.
//
// # Which endpoints
//
// Ready endpoints have Priority 0. Endpoints that are about to stop and still
// serve have a later one, so that they are used only when no ready one works; all
// others are left out. PreferZone puts endpoints of other zones behind those of one.
// A Service without a usable endpoint is an error: the Upstream keeps its last set.
//
// # At the start
//
// The last good set is kept in the file Cache and is used until the API has answered, so the API
// may be reached through the Upstream of this very source. Bootstrap is used if there is no such
// file yet, or no address in it works.
//
// The package uses net/http and decodes the few fields it needs, instead of
// client-go, which would be larger than the rest of the gateway.
//
// Unstable until 1.0.
package kube
