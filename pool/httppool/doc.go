// Package httppool pools HTTP/1.1 client connections: an http.RoundTripper and a streaming forward handler over them.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//
//		"github.com/headpond/headpond/pool/httppool"
//	)
//
//	func main() {
//		forward, err := httppool.Forward("http://127.0.0.1:9001")
//		if err != nil {
//			log.Fatal(err)
//		}
//		log.Fatal(http.ListenAndServe("127.0.0.1:8080", forward))
//	}
//
// With gin it is router.Any("/*path", gin.WrapH(forward)); a client is http.Client{Transport: transport} with a
// Transport of NewTransport.
//
// # When a connection is reused
//
// Only after both messages were framed exactly and read to their end, nothing was upgraded, nothing extra arrived,
// neither side asked to close, and no login by NTLM or Negotiate took place. A connection is examined without waiting
// before and after each use: if it is closed, or holds an unexpected byte, it is closed and not pooled. Input that two
// readers might understand differently is not repaired but refused (ErrMalformedResponse), except for two framings of a
// body that have one safe meaning (Options.StrictBackend).
//
// The life of an exchange: lease (transport.go), request head (request.go), body (upload.go), response head (head.go),
// body (body.go), release or discard (exchange.go).
package httppool
