// Package acme obtains certificates for listeners of the gateway from a certificate authority that
// speaks ACME (RFC 8555), such as Let's Encrypt, and renews them. It adds the section "acme" to the
// configuration file and serves the key "acme" of a listener's "tls". A program gets both by importing
// it:
//
//	import _ "github.com/headpond/headpond/acme"
//
// The authority checks names by http-01, which http listeners answer, or by tls-alpn-01, which
// listeners with "acme" answer. Package certmagic keeps, shares and renews the certificates; package
// acmez places orders.
//
// config.go has the configuration, part.go the part of a gateway, manager.go the certificates,
// issuer.go the orders, account.go the account at the authority, challenges.go the answers to the
// authority, log.go certmagic's log, and report.go the rows of the admin pages.
package acme
