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
// # When a connection is used again
//
// Only after both messages were framed exactly and read to their end, nothing was upgraded, nothing extra arrived,
// neither side asked to close, and nobody was logged in by NTLM or Negotiate. A connection is looked at without
// waiting before each use and after it: if it is closed, or holds any byte nobody asked for, it is thrown away. What
// two readers of one byte stream might understand differently is not repaired but refused (ErrMalformedResponse).
//
// The life of an exchange: lease (transport.go), request head (request.go), body (upload.go), response head (head.go),
// body (body.go, chunked.go), release or discard (exchange.go).
package httppool
