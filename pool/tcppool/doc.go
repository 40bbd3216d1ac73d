// Package tcppool keeps network connections by address and lends them out
// again, for protocols whose user knows when an exchange is complete.
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
// A pool cannot see where one exchange on a byte stream ends and the next
// begins. So nothing is kept by default: Close closes the connection, as it
// does for every net.Conn, and only Release, by which the caller states that
// everything sent has been answered and everything answered has been read, puts
// it back. Even then a connection is kept only if no Read or Write is under way,
// none has failed, and a look at the socket, without blocking or taking a
// byte, shows it open with nothing waiting in it. The look is repeated before
// the connection is lent again, unless it was less than 5 µs ago: what the system
// knew of then keeps a connection from being lent, and what comes later could as
// well come just behind the beginning of the loan. TLS of your own inside the connection, an upgrade,
// or a reader that may have buffered more than it used are reasons not to release.
// Where a socket cannot be looked at (Windows), nothing is kept.
//
// # TLS
//
// With Config.TLS the Dialer does the handshake, so that a connection opened ahead
// of demand (MinIdle) or kept has it behind it. A look reads what belongs to TLS
// itself, such as the session tickets of TLS 1.3; what is meant for the caller, the
// greeting of a server that speaks first, stays for the first Read.
//
// New connections resume sessions of earlier ones, up to 8 per address, which saves
// the server's certificate and its signature. TLS 1.3's tickets are meant for one
// connection each: each is used once as long as there is another, and the last one
// again. A server that refuses it then (or, as PostgreSQL, gives none) costs a full
// handshake, nothing else. Tickets come after the handshake: a connection that
// nobody reads from or looks at brings none. With Config.TLS.VerifyPeerCertificate,
// which is not called for resumed sessions, none are, unless there is a
// ClientSessionCache.
//
// # Defaults
//
// At most 10 connections per address, idle ones closed after 5 minutes, or within
// a second when the server has closed them, and a direct connection, which is closed after use, when all 10 are taken. An
// address that has had no connection for a minute is forgotten.
package tcppool
