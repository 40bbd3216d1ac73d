package pgwire

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strconv"
	"strings"
)

// ScramServer is the server's side of one SCRAM-SHA-256 exchange: First, then Final. It is not
// safe for concurrent use.
type ScramServer struct {
	verifier ScramVerifier
	nonce    string // the server's part, then both
	gs2      string
	bare     string // client-first-message-bare
	first    string // server-first-message
}

// NewScramServer starts an exchange with the user who has a verifier.
func NewScramServer(v ScramVerifier) *ScramServer {
	return &ScramServer{verifier: v, nonce: newNonce()}
}

// First takes the client's first message and returns the server's.
func (s *ScramServer) First(message []byte) ([]byte, error) {
	text := string(message)
	flag, rest, ok := strings.Cut(text, ",")
	authzid, bare, ok2 := strings.Cut(rest, ",")
	switch {
	case !ok || !ok2:
		return nil, fmt.Errorf("%w: SCRAM client-first-message", ErrMalformed)
	case flag != "n" && flag != "y":
		return nil, fmt.Errorf("%w: SCRAM channel binding was asked for and not offered", ErrMalformed)
	case authzid != "":
		return nil, fmt.Errorf("%w: SCRAM authorization identity is not supported", ErrMalformed)
	}
	values, err := attributes(bare, "nr")
	if err != nil {
		return nil, err
	}
	if values[1] == "" || strings.Trim(values[1], printable) != "" {
		return nil, fmt.Errorf("%w: SCRAM nonce has characters that are not printable", ErrMalformed)
	}
	s.gs2, s.bare = flag+",,", bare
	s.nonce = values[1] + s.nonce
	s.first = "r=" + s.nonce + ",s=" + base64Std.EncodeToString(s.verifier.Salt) +
		",i=" + strconv.Itoa(s.verifier.Iterations)
	return []byte(s.first), nil
}

// printable are the characters a nonce may have: ASCII from 0x21 to 0x7e but the comma.
var printable = func() string {
	var b strings.Builder
	for c := byte(0x21); c < 0x7f; c++ {
		if c != ',' {
			b.WriteByte(c)
		}
	}
	return b.String()
}()

// Final takes the client's last message and returns the server's, which proves that the server
// knows the verifier. A wrong password is an error wrapping ErrAuth; it takes as long as a
// right one.
func (s *ScramServer) Final(message []byte) ([]byte, error) {
	text := string(message)
	i := strings.LastIndex(text, ",p=")
	if i < 0 || s.first == "" {
		return nil, fmt.Errorf("%w: SCRAM client-final-message has no proof", ErrMalformed)
	}
	withoutProof := text[:i]
	values, err := attributes(withoutProof, "cr")
	if err != nil {
		return nil, err
	}
	proof, err := base64Std.DecodeString(text[i+3:])
	if err != nil || len(proof) != sha256.Size {
		return nil, fmt.Errorf("%w: SCRAM proof is not %d bytes in base64", ErrMalformed, sha256.Size)
	}
	if values[0] != base64Std.EncodeToString([]byte(s.gs2)) || values[1] != s.nonce {
		return nil, fmt.Errorf("%w: SCRAM nonce or channel binding changed in the exchange", ErrMalformed)
	}
	authMessage := s.bare + "," + s.first + "," + withoutProof
	clientKey := xor(proof, mac(s.verifier.StoredKey, authMessage))
	stored := sha256.Sum256(clientKey)
	if subtle.ConstantTimeCompare(stored[:], s.verifier.StoredKey) != 1 {
		return nil, fmt.Errorf("%w: wrong password", ErrAuth)
	}
	return []byte("v=" + base64Std.EncodeToString(mac(s.verifier.ServerKey, authMessage))), nil
}
