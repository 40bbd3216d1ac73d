package pgwire

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"fmt"
	"io"
	"strconv"
)

// ScramServer is the server's side of one exchange of SCRAM-SHA-256 or SCRAM-SHA-256-PLUS: First, then Final. It is not safe
// for concurrent use.
type ScramServer struct {
	verifier ScramVerifier
	binding  []byte // that MechanismSCRAMPlus was offered with; nil = it was not offered
	nonce    nonce  // the server's half
	gs2      byte   // the channel binding flag of the client's header: n, y or p
	auth     []byte // macRoom bytes, and the AuthMessage so far; nil before First
	full     []byte // both halves of the nonce, in auth
	proven   bool   // Final has succeeded, and client is the client's key
	client   [scramKeySize]byte
}

// NewScramServer starts an exchange for the user of a verifier. binding is what the server offers MechanismSCRAMPlus with, see
// EndPointBinding; nil means that it does not offer it.
func NewScramServer(v ScramVerifier, binding []byte) *ScramServer {
	return &ScramServer{verifier: v, binding: binding, nonce: newNonce()}
}

// First takes the mechanism that the client has chosen and its first message, and returns the server's, which must not be
// changed. It does not retain message. A client that was made to believe that MechanismSCRAMPlus is not offered is an error
// that wraps ErrChannelBinding.
func (s *ScramServer) First(mechanism string, message []byte) ([]byte, error) {
	flag, rest, ok := bytes.Cut(message, comma)
	authzid, bare, ok2 := bytes.Cut(rest, comma)
	switch {
	case !ok || !ok2 || len(flag) == 0:
		return nil, fmt.Errorf("%w: SCRAM client-first-message", ErrMalformed)
	case len(authzid) > 0:
		return nil, fmt.Errorf("%w: SCRAM authorization identity is not supported", ErrMalformed)
	}
	if err := s.agree(mechanism, flag); err != nil {
		return nil, err
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

// agree checks the channel binding flag of a client's header against the mechanism (RFC 5802, section 6).
func (s *ScramServer) agree(mechanism string, flag []byte) error {
	plus := mechanism == MechanismSCRAMPlus && s.binding != nil
	kind, bound := bytes.CutPrefix(flag, []byte("p="))
	switch {
	case !plus && mechanism != MechanismSCRAM:
		return fmt.Errorf("%w: SASL mechanism %q was not offered", ErrMalformed, mechanism)
	case plus && bound && string(kind) != bindingType:
		return fmt.Errorf("%w: SCRAM channel binding of type %q is not supported", ErrMalformed, kind)
	case plus != bound || !bound && string(flag) != "n" && string(flag) != "y":
		return fmt.Errorf("%w: SCRAM channel binding is not as the mechanism %s says", ErrMalformed, mechanism)
	case flag[0] == 'y' && s.binding != nil:
		return fmt.Errorf("%w: the client does not know that %s is offered", ErrChannelBinding, MechanismSCRAMPlus)
	}
	return nil
}

// notInNonce reports whether a nonce must not contain r: only 0x21 to 0x7e are allowed, without the comma, which ends the
// nonce.
func notInNonce(r rune) bool { return r < 0x21 || r > 0x7e }

// checkChannel checks the client's header, which its last message repeats in base64, with the channel binding after it.
func (s *ScramServer) checkChannel(encoded []byte) error {
	const header = "p=" + bindingType + ",,"
	var buf [len(header) + sha512.Size + 2]byte // with space for Decode
	n := 0
	if len(encoded) <= base64Std.EncodedLen(len(buf)) {
		var err error
		if n, err = base64Std.Decode(buf[:], encoded); err != nil || base64Std.EncodedLen(n) != len(encoded) { // it skips line breaks
			n = 0
		}
	}
	binding, bound := bytes.CutPrefix(buf[:n], []byte(header))
	switch {
	case bound != (s.gs2 == 'p'), !bound && string(buf[:n]) != string(s.gs2)+",,":
		return fmt.Errorf("%w: SCRAM channel binding changed in the exchange", ErrMalformed)
	case bound && subtle.ConstantTimeCompare(binding, s.binding) != 1:
		return fmt.Errorf("%w: the client has seen another certificate than this server's", ErrChannelBinding)
	}
	return nil
}

// Final takes the client's last message and returns the server's, which proves that the server knows the verifier. A wrong
// password is an error wrapping ErrAuth; it takes as long as a right one. Another TLS connection than the client's is an error
// wrapping ErrChannelBinding, whatever the password.
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
	if !bytes.Equal(values[1], s.full) {
		return nil, fmt.Errorf("%w: SCRAM nonce changed in the exchange", ErrMalformed)
	}
	if err := s.checkChannel(values[0]); err != nil {
		return nil, err
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
