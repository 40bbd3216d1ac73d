package pgwire

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"strconv"
)

// ScramServer is the server's side of one SCRAM-SHA-256 exchange: First, then Final. It is not
// safe for concurrent use.
type ScramServer struct {
	verifier ScramVerifier
	nonce    nonce  // the server's half
	gs2      byte   // the channel binding flag of the client's header
	auth     []byte // macRoom bytes, and the AuthMessage so far; nil before First
	full     []byte // both halves of the nonce, in auth
	proven   bool   // Final has succeeded, and client is the client's key
	client   [scramKeySize]byte
}

// NewScramServer starts an exchange for the user of a verifier.
func NewScramServer(v ScramVerifier) *ScramServer {
	return &ScramServer{verifier: v, nonce: newNonce()}
}

// First takes the client's first message and returns the server's, which must not be changed. It does not retain message.
func (s *ScramServer) First(message []byte) ([]byte, error) {
	flag, rest, ok := bytes.Cut(message, comma)
	authzid, bare, ok2 := bytes.Cut(rest, comma)
	switch {
	case !ok || !ok2:
		return nil, fmt.Errorf("%w: SCRAM client-first-message", ErrMalformed)
	case string(flag) != "n" && string(flag) != "y":
		return nil, fmt.Errorf("%w: SCRAM channel binding was asked for and not offered", ErrMalformed)
	case len(authzid) > 0:
		return nil, fmt.Errorf("%w: SCRAM authorization identity is not supported", ErrMalformed)
	}
	values, err := attributes(bare, "nr")
	if err != nil {
		return nil, err
	}
	theirs := values[1]
	if len(theirs) == 0 || bytes.ContainsFunc(theirs, notInNonce) {
		return nil, fmt.Errorf("%w: SCRAM nonce has characters that are not printable", ErrMalformed)
	}
	const most = 200 // bytes that the server adds here and in Final, without the nonces and the salt
	auth := make([]byte, macRoom, macRoom+len(bare)+2*(len(theirs)+len(s.nonce))+2*len(s.verifier.Salt)+most)
	auth = append(append(auth, bare...), ',')
	first := len(auth)
	auth = append(auth, "r="...)
	nonce := len(auth)
	auth = append(append(auth, theirs...), s.nonce[:]...)
	s.full = auth[nonce:]
	auth = append(base64Std.AppendEncode(append(auth, ",s="...), s.verifier.Salt), ",i="...)
	s.auth = strconv.AppendInt(auth, int64(s.verifier.Iterations), 10)
	s.gs2 = flag[0]
	return s.auth[first:len(s.auth):len(s.auth)], nil
}

// notInNonce reports whether a nonce must not contain r: only 0x21 to 0x7e are allowed, without the comma, which ends the
// nonce.
func notInNonce(r rune) bool { return r < 0x21 || r > 0x7e }

// channel returns the client's header in base64, as its last message must repeat it.
func (s *ScramServer) channel() string {
	if s.gs2 == 'y' {
		return "eSws" // "y,,"
	}
	return "biws" // "n,,"
}

// Final takes the client's last message and returns the server's, which proves that the server knows the verifier. A wrong
// password is an error wrapping ErrAuth; it takes as long as a right one.
func (s *ScramServer) Final(message []byte) ([]byte, error) {
	i := bytes.LastIndex(message, []byte(",p="))
	if i < 0 || s.auth == nil {
		return nil, fmt.Errorf("%w: SCRAM client-final-message has no proof", ErrMalformed)
	}
	withoutProof, encoded := message[:i], message[i+3:]
	values, err := attributes(withoutProof, "cr")
	if err != nil {
		return nil, err
	}
	var buf [sha256.Size + 2]byte // space for Decode
	proof := buf[:sha256.Size]
	decoded := 0
	if len(encoded) == base64Std.EncodedLen(sha256.Size) {
		decoded, err = base64Std.Decode(buf[:], encoded)
	}
	if err != nil || decoded != sha256.Size {
		return nil, fmt.Errorf("%w: SCRAM proof is not %d bytes in base64", ErrMalformed, sha256.Size)
	}
	if string(values[0]) != s.channel() || !bytes.Equal(values[1], s.full) {
		return nil, fmt.Errorf("%w: SCRAM nonce or channel binding changed in the exchange", ErrMalformed)
	}
	auth := append(append(s.auth, ','), withoutProof...)
	signature := macOf(s.verifier.StoredKey, auth)
	subtle.XORBytes(proof, proof, signature[:]) // the client's key
	stored := sha256.Sum256(proof)
	if subtle.ConstantTimeCompare(stored[:], s.verifier.StoredKey) != 1 {
		return nil, fmt.Errorf("%w: wrong password", ErrAuth)
	}
	s.proven = true
	copy(s.client[:], proof)
	signature = macOf(s.verifier.ServerKey, auth)
	return base64Std.AppendEncode([]byte("v="), signature[:]), nil
}

// Keys returns keys with which this program can log in as the client to servers that have the same verifier. They are
// zero unless Final has succeeded: a client's proof reveals its key to whoever has the verifier (RFC 5802, section 9).
func (s *ScramServer) Keys() (k ScramKeys) {
	if !s.proven {
		return k
	}
	k.iterations, k.salt, k.clientKey = s.verifier.Iterations, s.verifier.Salt, s.client
	copy(k.serverKey[:], s.verifier.ServerKey)
	return k
}

// Format shows no secret, whatever the verb.
func (s *ScramServer) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[SCRAM server]") }
