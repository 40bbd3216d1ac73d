package extend

import (
	"crypto/tls"
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// Certifier is a Part that obtains certificates of listeners (config.ServerTLS.ACME, config.Extension.Certifies).
type Certifier interface {
	Part
	// Certificates returns the certificates of a listener of the most recently planned configuration. It may be called
	// before that configuration is in force.
	Certificates(l *config.Listener) Certificates
	// KeyAuthorization returns the text for a certificate authority's request of
	// /.well-known/acme-challenge/token (RFC 8555, section 8.3), "" for an unknown token: the request is
	// then handled like any other. The token may have any characters. It may wait for files.
	KeyAuthorization(token string) string
}

// Certificates holds the certificates that a Certifier obtains for one listener. Handshakes call the methods,
// concurrently and on goroutines, so that the methods may wait for files.
type Certificates interface {
	// Certificate returns the certificate for a client, nil if there is none yet or the listener does not
	// have the client's server name.
	Certificate(hello *tls.ClientHelloInfo) *tls.Certificate
	// Challenge returns the settings for a handshake by which a certificate authority checks a name (RFC
	// 8737), nil for other handshakes. Listeners that ask for client certificates do not call it.
	Challenge(hello *tls.ClientHelloInfo) *tls.Config
	// Expires returns when the first of the certificates expires, zero if there is none yet.
	Expires() time.Time
}
