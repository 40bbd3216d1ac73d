package pgwire

import (
	"bytes"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The supported SASL mechanisms (RFC 5802, RFC 7677). The second one has channel binding: both sides prove that they are the
// ends of the same TLS connection. See EndPointBinding.
const (
	MechanismSCRAM     = "SCRAM-SHA-256"
	MechanismSCRAMPlus = "SCRAM-SHA-256-PLUS"
)

// ScramIterations is PostgreSQL's iteration count for new secrets.
const ScramIterations = 4096

// maxScramIterations bounds the work that a server, or a stored secret, can demand of this program.
const maxScramIterations = 1_000_000

const (
	saltSize  = 16 // bytes, as PostgreSQL
	nonceSize = 18 // random bytes in a nonce, as PostgreSQL

	scramKeySize = sha256.Size
)

// ErrAuth is wrapped by errors for a peer that could not prove that it knows the password.
var ErrAuth = errors.New("pgwire: authentication failed")

var base64Std = base64.StdEncoding.Strict()

// ScramVerifier is what a server stores instead of a password.
type ScramVerifier struct {
	Iterations int
	Salt       []byte
	StoredKey  []byte // 32 bytes
	ServerKey  []byte // 32 bytes
}

// NewScramVerifier computes the verifier of a password, which takes some milliseconds. A nil salt means a random one.
// SASLprep, which changes some passwords outside ASCII, is not applied.
func NewScramVerifier(password string, salt []byte, iterations int) (ScramVerifier, error) {
	if salt == nil {
		salt = make([]byte, saltSize)
		_, _ = rand.Read(salt)
	}
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return ScramVerifier{}, fmt.Errorf("pgwire: SCRAM: %w", err)
	}
	client := mac(salted, "Client Key")
	stored := sha256.Sum256(client)
	return ScramVerifier{Iterations: iterations, Salt: salt, StoredKey: stored[:], ServerKey: mac(salted, "Server Key")}, nil
}

// ParseScramVerifier parses "SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey", the form of pg_authid.rolpassword. The
// error does not show the secret.
func ParseScramVerifier(s string) (ScramVerifier, error) {
	bad := fmt.Errorf("%w: SCRAM secret is not SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey", ErrMalformed)
	rest, ok := strings.CutPrefix(s, MechanismSCRAM+"$")
	params, keys, ok2 := strings.Cut(rest, "$")
	iter, salt, ok3 := strings.Cut(params, ":")
	stored, server, ok4 := strings.Cut(keys, ":")
	if !ok || !ok2 || !ok3 || !ok4 {
		return ScramVerifier{}, bad
	}
	var v ScramVerifier
	var errs [4]error
	v.Iterations, errs[0] = strconv.Atoi(iter)
	v.Salt, errs[1] = base64Std.DecodeString(salt)
	v.StoredKey, errs[2] = base64Std.DecodeString(stored)
	v.ServerKey, errs[3] = base64Std.DecodeString(server)
	if errors.Join(errs[:]...) != nil || v.Iterations < 1 || len(v.Salt) == 0 ||
		len(v.StoredKey) != sha256.Size || len(v.ServerKey) != sha256.Size {
		return ScramVerifier{}, bad
	}
	return v, nil
}

// Keys returns the keys of a client that has sent its password, see ScramServer.Keys. A wrong password is an error that wraps
// ErrAuth. It computes for milliseconds.
func (v ScramVerifier) Keys(password string) (k ScramKeys, err error) {
	if v.Iterations > maxScramIterations { // users choose their own verifiers
		return k, fmt.Errorf("%w: SCRAM secret with %d iterations, want at most %d", ErrAuth, v.Iterations, maxScramIterations)
	}
	salted, err := pbkdf2.Key(sha256.New, password, v.Salt, v.Iterations, sha256.Size)
	if err != nil {
		return k, fmt.Errorf("pgwire: SCRAM: %w", err)
	}
	client := mac(salted, "Client Key")
	if stored := sha256.Sum256(client); subtle.ConstantTimeCompare(stored[:], v.StoredKey) != 1 {
		return k, fmt.Errorf("%w: wrong password", ErrAuth)
	}
	k.iterations, k.salt = v.Iterations, v.Salt
	copy(k.clientKey[:], client)
	copy(k.serverKey[:], v.ServerKey)
	return k, nil
}

// MockScramVerifier returns a verifier that no password satisfies. Its salt is always the same for the same user and
// secret. With it a server can do the exchange for an unknown user without revealing that, if known users have as many
// iterations. secret should be random and kept for the life of the process.
func MockScramVerifier(secret []byte, user string, iterations int) ScramVerifier {
	seed := mac(secret, "salt "+user)
	return ScramVerifier{
		Iterations: iterations,
		Salt:       seed[:saltSize],
		StoredKey:  mac(secret, "stored "+user),
		ServerKey:  mac(secret, "server "+user),
	}
}

// String returns the stored form. It is a secret.
func (v ScramVerifier) String() string {
	return fmt.Sprintf("%s$%d:%s$%s:%s", MechanismSCRAM, v.Iterations, base64Std.EncodeToString(v.Salt),
		base64Std.EncodeToString(v.StoredKey), base64Std.EncodeToString(v.ServerKey))
}

func mac(key []byte, message string) []byte {
	sum := macOf(key, append(make([]byte, macRoom, macRoom+len(message)), message...))
	return sum[:]
}

// macRoom is the space in bytes that macOf needs before a message.
const macRoom = sha256.BlockSize

// macOf returns the HMAC-SHA-256 of message[macRoom:], and overwrites what is before it. crypto/hmac would allocate seven
// times, much of the cost of a login.
func macOf(key, message []byte) [sha256.Size]byte {
	if len(key) > sha256.BlockSize {
		short := sha256.Sum256(key)
		key = short[:]
	}
	const innerPad, outerPad = 0x36, 0x5c // RFC 2104
	var outer [sha256.BlockSize + sha256.Size]byte
	for i := range macRoom {
		message[i], outer[i] = innerPad, outerPad
	}
	subtle.XORBytes(message, message[:macRoom], key)
	subtle.XORBytes(outer[:], outer[:macRoom], key)
	inner := sha256.Sum256(message)
	copy(outer[macRoom:], inner[:])
	return sha256.Sum256(outer[:])
}

// nonce is a string of random printable characters without commas.
type nonce [nonceSize / 3 * 4]byte

func newNonce() (n nonce) {
	var b [nonceSize]byte
	_, _ = rand.Read(b[:])
	base64Std.Encode(n[:], b[:])
	return n
}

// attributes splits a SCRAM message "a=x,b=y" and checks that it begins with exactly the given letters, at most three, in
// that order. Extensions after them are ignored. The values alias message.
func attributes(message []byte, letters string) (values [3][]byte, err error) {
	rest, more := message, true
	for i := range len(letters) {
		if !more {
			return values, fmt.Errorf("%w: SCRAM message has %d attributes, want %d", ErrMalformed, i, len(letters))
		}
		var part []byte
		part, rest, more = bytes.Cut(rest, comma)
		if len(part) < 2 || part[0] != letters[i] || part[1] != '=' {
			return values, fmt.Errorf("%w: SCRAM attribute %d is not %q", ErrMalformed, i+1, letters[i])
		}
		values[i] = part[2:]
	}
	return values, nil
}

var comma = []byte{','}
