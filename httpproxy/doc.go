// Package httpproxy is the gateway's listener protocol "http": HTTP/1.1 and HTTP/2 from clients, routed by host,
// path, method, headers, query and fields of JSON bodies, forwarded over pooled connections of HTTP/1.1 or HTTP/2, streaming both ways.
//
//	api, err := httpproxy.NewUpstream("api", httpproxy.UpstreamOptions{Settings: upstream.Settings{
//		Endpoints: upstream.Endpoints("127.0.0.1:9001", "127.0.0.1:9002"),
//	}})
//	if err != nil {
//		log.Fatal(err)
//	}
//	p, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{{Path: "/", Upstream: api}}})
//	if err != nil {
//		log.Fatal(err)
//	}
//	l, err := net.Listen("tcp", "127.0.0.1:8080")
//	if err != nil {
//		log.Fatal(err)
//	}
//	log.Fatal(p.Serve(l))
//
// The life of a request: accept and admit (package listener), read its head (session.go), route (route.go, match.go, peek.go), lease and
// send (forward.go), send again (retry.go), upload and answer (upload.go, bodies.go) or change the protocol (upgrade.go), count and log
// (finish.go, done.go).
//
// # Forwarding
//
// The method, the path as written, the query, Host and every end-to-end field are unchanged; each request is written
// anew in exactly one framing, so that the server cannot read other requests than this proxy did. Requests that could
// be read in two ways are refused with 400, as are paths with "." or ".." segments (a server resolves them and would
// serve another path than was routed). CONNECT is refused with 405.
//
// The session reads heads with package httpwire, of HTTP/1.1, HTTP/1.0 and in every form of target; the session sees an
// HTTP/2 stream as a connection with one request. Heads of HTTP/2 pass as fields on either side, under the same rules;
// bodies pass as HTTP/1.1 frames them. After a request that asks for an upgrade the client's connection ends, whatever
// the server answers.
//
// X-Forwarded-For, -Proto, -Host and Forwarded are extended if they come from a trusted proxy and replaced otherwise.
// X-Request-Id is set unless the client sent a well-formed one.
//
// # Errors
//
// 404 for an unknown route; 502 if no endpoint can be reached or the answer is not HTTP; 503 with Retry-After if
// every connection is in use; 504 if the server does not answer in time; in JSON if Accept prefers it, with the
// upstream's name, the reason and the request's id. A response that breaks off half-way ends the client's connection
// (HTTP/2: its stream) without a clean end.
//
// # Limits
//
// HTTP/1.1 upgrades (WebSocket) pass to servers of HTTP/1.1; WebSocket over HTTP/2 (RFC 8441) does not, on either side.
// A server that logs connections in (NTLM, Negotiate) cannot be used: its connections are never used twice.
//
// Unstable until 1.0.
package httpproxy
