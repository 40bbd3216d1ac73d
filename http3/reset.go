package http3

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"net"
	"os"

	"github.com/quic-go/quic-go"
)

// resetKey returns the key of the tokens with which a server tells a client that it does not know the client's
// connection (RFC 9000, section 10.3). Without them the client would wait until its idle timeout. Address and host name
// are part of it: machines with the same certificate must not have the same key, because each would give away the
// tokens of the others' connections (section 21.11).
func resetKey(secret []byte, address net.Addr) *quic.StatelessResetKey {
	key := new(quic.StatelessResetKey)
	host, err := os.Hostname()
	if len(secret) > 0 && err == nil {
		derived, err := hkdf.Key(sha256.New, secret, nil, "QUIC stateless reset "+host+" "+address.String(), len(key))
		if err == nil {
			copy(key[:], derived)
			return key
		}
	}
	_, _ = rand.Read(key[:])
	return key
}
