package pgwire

import (
	"bytes"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// ScramClient is the client's side of one exchange of SCRAM-SHA-256 or SCRAM-SHA-256-PLUS: First, Continue, Verify. It is not
// safe for concurrent use.
type ScramClient struct {
	password string
	keys     ScramKeys // in place of the password, unless they are zero
	nonce    string
	header   string // of First, see RFC 5802, section 7
	binding  []byte // after the header in the last message; nil = the mechanism has no channel binding
	expected []byte // the server's signature, known after Continue
}

// NewScramClient starts an exchange. It needs no user name: PostgreSQL takes it from the StartupMessage.
func NewScramClient(password string) *ScramClient {
	n := newNonce()
	return &ScramClient{password: password, nonce: string(n[:])}
}

// NewScramClientFromKeys starts an exchange without the password. The server must have the verifier that the keys come
// from: otherwise Continue returns an error that wraps ErrScramKeys, or the server refuses the client. The server must
// prove that it knows the verifier, as it must to a client with a password.
func NewScramClientFromKeys(keys ScramKeys) *ScramClient {
	c := NewScramClient("")
	c.keys = keys
	return c
}

// Format shows neither password nor keys, whatever the verb.
func (c *ScramClient) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[SCRAM client]") }

// First returns the mechanism to choose of those that the server offers, and the client's first message. binding is that of
// the TLS connection (EndPointBinding); nil means that there is none, or that it must not be used. With a binding, the client
// chooses MechanismSCRAMPlus if it is offered. If not, its message says that it could have, so that the server can tell
// whether somebody has changed its offer. An offer of neither mechanism is an error.
func (c *ScramClient) First(offered []string, binding []byte) (mechanism string, message []byte, err error) {
	switch {
	case binding != nil && slices.Contains(offered, MechanismSCRAMPlus):
		mechanism, c.header, c.binding = MechanismSCRAMPlus, "p="+bindingType+",,", binding
	case !slices.Contains(offered, MechanismSCRAM):
		return "", nil, fmt.Errorf("pgwire: SASL mechanisms %q, want %s", offered, MechanismSCRAM)
	case binding != nil:
		mechanism, c.header = MechanismSCRAM, "y,,"
	default:
		mechanism, c.header = MechanismSCRAM, "n,,"
	}
	return mechanism, []byte(c.header + "n=,r=" + c.nonce), nil
}

// Continue takes the server's first message and returns the client's last.
func (c *ScramClient) Continue(message []byte) ([]byte, error) {
	first := string(message)
	values, err := attributes(message, "rsi")
	if err != nil {
		return nil, err
	}
	full, count := string(values[0]), string(values[2])
	salt, err := base64Std.DecodeString(string(values[1]))
	if err != nil || len(salt) == 0 {
		return nil, fmt.Errorf("%w: SCRAM salt is not base64", ErrMalformed)
	}
	iterations, err := strconv.Atoi(count)
	if err != nil || iterations < 1 || iterations > maxScramIterations {
		return nil, fmt.Errorf("%w: SCRAM iteration count %q, want 1 to %d", ErrMalformed, count, maxScramIterations)
	}
	if !strings.HasPrefix(full, c.nonce) || len(full) == len(c.nonce) {
		return nil, fmt.Errorf("%w: the server's SCRAM nonce does not extend the client's", ErrAuth)
	}
	clientKey, serverKey, err := c.keysFor(salt, iterations)
	if err != nil {
		return nil, err
	}
	withoutProof := "c=" + base64Std.EncodeToString(append([]byte(c.header), c.binding...)) + ",r=" + full
	authMessage := "n=,r=" + c.nonce + "," + first + "," + withoutProof
	stored := sha256.Sum256(clientKey)
	proof := mac(stored[:], authMessage)
	subtle.XORBytes(proof, proof, clientKey)
	c.expected = mac(serverKey, authMessage)
	return []byte(withoutProof + ",p=" + base64Std.EncodeToString(proof)), nil
}

// keysFor returns the keys for the salt and the iteration count of a server.
func (c *ScramClient) keysFor(salt []byte, iterations int) (clientKey, serverKey []byte, err error) {
	if k := &c.keys; !k.IsZero() {
		if k.iterations != iterations || !bytes.Equal(k.salt, salt) {
			return nil, nil, ErrScramKeys
		}
		return k.clientKey[:], k.serverKey[:], nil
	}
	salted, err := pbkdf2.Key(sha256.New, c.password, salt, iterations, sha256.Size)
	if err != nil {
		return nil, nil, fmt.Errorf("pgwire: SCRAM: %w", err)
	}
	return mac(salted, "Client Key"), mac(salted, "Server Key"), nil
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
