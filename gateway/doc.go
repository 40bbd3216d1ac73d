// Package gateway turns a configuration into running listeners: it builds the upstreams and proxies, serves them,
// applies a changed configuration without touching connections needlessly, and drains.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"os"
//		"os/signal"
//
//		"github.com/headpond/headpond/gateway"
//		"github.com/headpond/headpond/gateway/config"
//	)
//
//	func main() {
//		cfg, problems := config.Load("headpond.yaml")
//		fmt.Fprint(os.Stderr, problems)
//		if cfg == nil {
//			os.Exit(1)
//		}
//		gw, err := gateway.New(cfg, gateway.Options{})
//		if err != nil {
//			fmt.Fprintln(os.Stderr, err)
//			os.Exit(1)
//		}
//		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
//		defer stop()
//		if err := gw.Run(ctx); err != nil {
//			os.Exit(1)
//		}
//	}
//
// # Reload
//
// Gateway.Reload applies the difference between two configurations, all of it or nothing:
//
//   - A listener or upstream that did not change is not touched. Certificates and user lists are read again and count
//     as changed if their content has changed.
//   - A changed one is updated in place: new sessions use it, running ones continue unchanged. A new set of endpoints
//     keeps the connections to endpoints that remain.
//   - A listener with another address opens the new one before it closes the old one; its sessions stay. Listeners may
//     exchange names and addresses: a listener that gets an address of another takes the socket over. An address that
//     only overlaps (0.0.0.0:80 for 127.0.0.1:80) is refused.
//   - A failed socket of a listener is opened again. The listener's other socket stays, and so do all connections. The gateway also
//     tries that by itself, a second after a failure and then less and less often. An address that another program has taken meanwhile does not
//     refuse the reload.
//   - Settings that cannot change in place (an upstream's TLS or login, a listener's protocol) lead to a new listener
//     or upstream on the same socket; sessions of the old one finish there, within the drain time-out.
//   - Removed listeners drain.
//   - A removed or replaced upstream is closed when the last session or request that began before has ended, 5 seconds later at the
//     earliest. Until then these still lease connections of it.
//
// Everything that can fail is done first: files are read, new ports bound. If anything fails, everything prepared is
// closed again and the old configuration stays in force.
//
// # Ending
//
// When Run's context ends the gateway drains: it stops accepting, /readyz answers 503, sessions may finish within drain_timeout, then they
// are closed. The admin page stays up until the end. Close ends everything at once.
//
// # Protocols
//
// Package extend has the table of listener protocols and other extensions; builtin.go imports those that every gateway has.
//
// The files: service.go and backend.go (configuration to listeners and upstreams), plan.go and opening.go (from one
// configuration to another), gateway.go (serve and drain), reopen.go (sockets that fail), reload.go.
package gateway
