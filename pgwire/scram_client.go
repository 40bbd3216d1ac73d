package pgwire

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strconv"
	"strings"
)

// ScramClient is the client's side of one SCRAM-SHA-256 exchange: First, Continue, Verify. It
// is not safe for concurrent use.
type ScramClient struct {
	password string
	nonce    string
	expected []byte // the server's signature, known after Continue
}

// NewScramClient starts an exchange. PostgreSQL takes the user from the StartupMessage, so
// none is named here.
func NewScramClient(password string) *ScramClient {
	return &ScramClient{password: password, nonce: newNonce()}
}

// First returns the client's first message.
func (c *ScramClient) First() []byte { return []byte("n,,n=,r=" + c.nonce) }

// Continue takes the server's first message and returns the client's last.
func (c *ScramClient) Continue(message []byte) ([]byte, error) {
	first := string(message)
	values, err := attributes(first, "rsi")
	if err != nil {
		return nil, err
	}
	salt, err := base64Std.DecodeString(values[1])
	if err != nil || len(salt) == 0 {
		return nil, fmt.Errorf("%w: SCRAM salt is not base64", ErrMalformed)
	}
	iterations, err := strconv.Atoi(values[2])
	if err != nil || iterations < 1 || iterations > maxScramIterations {
		return nil, fmt.Errorf("%w: SCRAM iteration count %q, want 1 to %d", ErrMalformed, values[2], maxScramIterations)
	}
	if !strings.HasPrefix(values[0], c.nonce) || len(values[0]) == len(c.nonce) {
		return nil, fmt.Errorf("%w: the server's SCRAM nonce does not extend the client's", ErrAuth)
	}
	salted, err := pbkdf2.Key(sha256.New, c.password, salt, iterations, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("pgwire: SCRAM: %w", err)
	}
	withoutProof := "c=biws,r=" + values[0] // biws is base64 of "n,,"
	authMessage := "n=,r=" + c.nonce + "," + first + "," + withoutProof
	clientKey := mac(salted, "Client Key")
	stored := sha256.Sum256(clientKey)
	proof := xor(clientKey, mac(stored[:], authMessage))
	c.expected = mac(mac(salted, "Server Key"), authMessage)
	return []byte(withoutProof + ",p=" + base64Std.EncodeToString(proof)), nil
}

// Verify takes the server's last message and checks that the server knows the password too.
// A server that does not is an error wrapping ErrAuth.
func (c *ScramClient) Verify(message []byte) error {
	value, ok := strings.CutPrefix(string(message), "v=")
	signature, err := base64Std.DecodeString(value)
	if !ok || err != nil {
		return fmt.Errorf("%w: SCRAM server-final-message", ErrMalformed)
	}
	if c.expected == nil || subtle.ConstantTimeCompare(signature, c.expected) != 1 {
		return fmt.Errorf("%w: the server's SCRAM signature is wrong", ErrAuth)
	}
	return nil
}
