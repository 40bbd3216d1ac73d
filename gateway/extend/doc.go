// Package extend adds protocols and other parts to the gateway. A package registers a Protocol or an Extension in its
// init function, and every program that imports the package gets it. The parts of every gateway, gateway/protocols and
// gateway/tunnels, are registered the same way.
//
// A Protocol is a kind of listener. It defines its keys in the configuration (config.ListenerProtocol) and translates a
// checked listener to a proxy's configuration (Prepare); the gateway starts, reloads and drains the proxy.
//
// An Extension is any other part of a gateway: it may have keys at the top of the file and in upstreams, connect to the
// endpoints of upstreams, and show rows on the admin pages. It makes one Part for each gateway.
package extend
