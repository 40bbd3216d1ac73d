// Package acme obtains certificates for listeners of the gateway from a certificate authority that speaks ACME (RFC 8555), such as
// Let's Encrypt, and renews them. It adds the section "acme" to the configuration file and serves the key "acme" of a listener's "tls".
// A program that imports it has them:
//
//	import _ "github.com/headpond/headpond/acme"
//
// The authority checks names by http-01, which http listeners answer, or by tls-alpn-01, which listeners with "acme" answer. Package
// certmagic keeps, shares and renews the certificates; orders are package acmez's.
//
// config.go is the configuration, part.go the part of a gateway, manager.go has the certificates, issuer.go orders them, account.go has
// the account at the authority, challenges.go the answers to it, log.go takes certmagic's log over, and report.go has the rows of the
// admin pages.
package acme
