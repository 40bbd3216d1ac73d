// Package tcppool keeps network connections by address and lends them out again, for protocols
// whose user knows the end of an exchange.
//
//	package main
//
//	import (
//		"bufio"
//		"context"
//		"fmt"
//
//		"github.com/headpond/headpond/pool/tcppool"
//	)
//
//	func main() {
//		d, err := tcppool.New(tcppool.Config{})
//		if err != nil {
//			panic(err)
//		}
//		defer d.Close()
//		c, err := d.Get(context.Background(), "tcp", "127.0.0.1:7")
//		if err != nil {
//			fmt.Println(err)
//			return
//		}
//		defer c.Close() // discards, unless it was released
//		fmt.Fprintln(c, "ping")
//		if reply, err := bufio.NewReader(c).ReadString('\n'); err == nil {
//			fmt.Print(reply)
//			c.Release() // the exchange is complete: keep the connection
//		}
//	}
//
// # When a connection may be kept
//
// A pool cannot see where one exchange on a byte stream ends and the next begins. So nothing is
// kept by default: Close closes the connection, as it does for every net.Conn, and only Release, by
// which the caller states that everything sent has been answered and everything answered has been
// read, puts it back. Even then a connection is kept only if no Read or Write is running, none has
// failed, and a look at the socket, without blocking or taking a byte, shows it open with nothing
// waiting in it. The look is repeated before the connection is lent again, unless it was less than
// 5 µs ago: data that arrives after a look could as well arrive just after the beginning of the
// loan. Do not release after your own TLS inside the connection, after an upgrade, or with a reader
// that may have buffered more than it used. Where a socket cannot be examined (Windows), nothing is
// kept.
//
// # TLS
//
// With Config.TLS the Dialer does the handshake, so that a connection opened ahead
// of demand (MinIdle) or kept has done it. A look reads messages of TLS itself,
// such as the session tickets of TLS 1.3; data for the caller, such as the banner of
// a server that speaks first, stays for the first Read.
//
// New connections resume sessions of earlier ones, up to 8 per address, which saves the server's
// certificate and its signature. TLS 1.3's tickets are meant for one connection each: each is used
// once as long as there is another; the last one is used again. A server that refuses it then (or,
// as PostgreSQL, gives none) costs only a full handshake. Tickets come after the handshake: a
// connection that is never read or looked at gets none. With Config.TLS.VerifyPeerCertificate,
// which is not called for resumed sessions, none are resumed, unless there is a ClientSessionCache.
//
// # Defaults
//
// At most 10 connections per address; idle ones are closed after 5 minutes, or within
// a second when the server has closed them. When all 10 are in use, a direct connection
// is opened, which is closed after use. An address that has had no connection for a
// minute is forgotten.
package tcppool
