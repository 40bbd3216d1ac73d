// Package httpproxy is the gateway's listener protocol "http". It takes HTTP/1.1 and HTTP/2 from clients, routes
// requests by host, path, method, headers, cookies, query and fields of JSON bodies, and forwards them over pooled
// connections of HTTP/1.1 or HTTP/2, streaming in both directions.
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
// A request passes these steps: accept and admit (package listener), read the head (session.go), find the route
// (route.go, match.go, peek.go), check who the client is (access.go, bearer.go, forwardauth.go), copy the request for a
// mirror (mirror.go), lease a connection and send (forward.go), send again (retry.go), pass the body and the response
// (await.go, upload.go, bodies.go, rest.go) or switch protocols (upgrade.go), count and log (finish.go, done.go). The gateway's own
// answers are in ownanswer.go and errorpage.go.
//
// # Forwarding
//
// The method, the path as written, the query, Host and every end-to-end field are unchanged. Each request is written
// anew in exactly one framing, so that the server cannot see other requests than this proxy did. Requests that could be
// read in two ways are refused with 400. So are paths with "." or ".." segments: a server resolves them, and would
// serve another path than the one that was routed. CONNECT is refused with 405.
//
// The session reads HTTP/1.1 and HTTP/1.0 heads, in every form of target, with package httpwire. It treats an HTTP/2
// stream as a connection with one request. Fields of HTTP/2 follow the same rules as those of HTTP/1.1, towards clients
// and servers; bodies pass as they are. After a request for an upgrade, the client's connection ends, whatever
// the server answers.
//
// X-Forwarded-For, -Proto, -Host and Forwarded are extended if they come from a trusted proxy and replaced otherwise.
// X-Request-Id is set unless the client sent a well-formed one.
//
// # Errors
//
// The proxy answers 404 for an unknown route; 502 if no endpoint can be reached or the response is not HTTP; 503 with
// Retry-After if every connection is in use; 504 if the server does not answer in time. The body is JSON if Accept
// prefers it, with the upstream's name, the reason and the request's id. If a response breaks off half-way, the
// client's connection (HTTP/2: its stream) ends without a clean end.
//
// # Limits
//
// Upgrades (WebSocket) pass between all versions of HTTP, as Upgrade or as extended CONNECT (RFC 8441, RFC 9220), but not
// to servers of HTTP/2 alone that do not announce it. Servers that authenticate connections (NTLM, Negotiate) are not supported: their connections are not
// reused.
//
// Unstable until 1.0.
package httpproxy
