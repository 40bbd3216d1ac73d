package fiber

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"io"
)

// TLSKey returns a private key for a tls.Certificate of [TLSServer], which signs with key. Signatures that take long, with
// RSA for one, are made on a goroutine (see [Block]), so that handshakes do not hold the loop. A key that is no
// crypto.Signer is returned as it is.
func TLSKey(key crypto.PrivateKey) crypto.PrivateKey {
	switch k := key.(type) {
	case ed25519.PrivateKey:
		return key
	case *ecdsa.PrivateKey:
		if k.Curve == elliptic.P256() {
			return key
		}
	}
	if s, ok := key.(crypto.Signer); ok {
		return slowSigner{s}
	}
	return key
}

type slowSigner struct{ crypto.Signer }

// Sign implements crypto.Signer.
func (s slowSigner) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) (signature []byte, err error) {
	Block(func() { signature, err = s.Signer.Sign(rand, digest, opts) })
	return signature, err
}
