// Package pgwire encodes and decodes the messages of the PostgreSQL frontend/backend protocol, versions 3.0 and 3.2, for
// both sides of a connection. It also computes the messages of its authentication methods (SCRAM-SHA-256, md5). It opens
// no socket and starts no goroutine.
//
//	package main
//
//	import (
//		"net"
//
//		"github.com/headpond/headpond/pgwire"
//	)
//
//	func main() {
//		conn, err := net.Dial("tcp", "127.0.0.1:5432")
//		if err != nil {
//			panic(err)
//		}
//		defer conn.Close()
//		w, r := pgwire.NewWriter(conn), pgwire.NewReader(conn)
//		w.Send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "app"}}})
//		if err := w.Flush(); err != nil {
//			panic(err)
//		}
//		h, err := r.Next()
//		if err != nil {
//			panic(err)
//		}
//		body, err := r.Body()
//		println(string(h.Type), len(body), err == nil)
//	}
//
// Each message has its own file, with Append beside Decode. Append adds the whole message, type
// byte and length included, to a slice and returns the extended slice. Decode takes the body,
// without the length word, and is strict: missing or additional bytes are an error wrapping
// ErrMalformed. Byte slices in a decoded message alias the body they were decoded from and are
// valid as long as it is; strings are copies.
//
// The names and numbers are those of the chapter "Frontend/Backend Protocol" of the
// PostgreSQL manual.
package pgwire
