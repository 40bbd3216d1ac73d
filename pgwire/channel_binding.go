package pgwire

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"errors"
)

// bindingType is the one type of channel binding that PostgreSQL has, by the server's certificate (RFC 5929, section 4).
const bindingType = "tls-server-end-point"

// ErrChannelBinding is wrapped by the errors of a ScramServer about a client whose TLS connection does not end at this
// server: another program is between the two.
var ErrChannelBinding = errors.New("pgwire: channel binding failed")

// EndPointBinding returns the data for channel binding on TLS connections whose server has shown a certificate: its hash, by
// the hash function of its signature, or SHA-256 in place of MD5 and SHA-1. It returns nil for signatures that name none, as
// those of Ed25519: there is no channel binding then.
func EndPointBinding(server *x509.Certificate) []byte {
	switch server.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.DSAWithSHA256, x509.ECDSAWithSHA256, x509.SHA256WithRSAPSS:
		sum := sha256.Sum256(server.Raw)
		return sum[:]
	case x509.SHA384WithRSA, x509.ECDSAWithSHA384, x509.SHA384WithRSAPSS:
		sum := sha512.Sum384(server.Raw)
		return sum[:]
	case x509.SHA512WithRSA, x509.ECDSAWithSHA512, x509.SHA512WithRSAPSS:
		sum := sha512.Sum512(server.Raw)
		return sum[:]
	}
	return nil
}
