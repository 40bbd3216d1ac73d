// Package extend is how protocols and other parts are added to the gateway: a package registers a Protocol or an Extension in its init
// function, and a program that imports it has it. Those that every gateway has, gateway/protocols and gateway/tunnels, are registered the
// same way.
//
// A Protocol is a kind of listener. It says what may stand in the configuration (config.ListenerProtocol) and translates a listener of a
// checked configuration to a proxy's (Prepare); starting, reloading and draining that is the gateway's.
//
// An Extension is whatever else runs in a gateway: it may have keys of its own at the top of the file and in upstreams, connect to the
// endpoints of upstreams, and have rows on the admin pages. It makes one Part for each gateway.
package extend
