package pgwire

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
)

// ErrScramKeys is wrapped by the error of a ScramClient whose keys were made from another secret than the server's: the
// salt or the iteration count differs.
var ErrScramKeys = errors.New("pgwire: the SCRAM keys belong to another secret than the server's")

// ScramKeys are what a client needs, in place of the password, to log in to servers that store the same verifier: see
// ScramServer.Keys and NewScramClientFromKeys. They are a secret. No format of package fmt, no log and no JSON shows
// them.
type ScramKeys struct {
	iterations           int
	salt                 []byte
	clientKey, serverKey [scramKeySize]byte
}

// IsZero reports whether there are no keys.
func (k ScramKeys) IsZero() bool { return k.iterations == 0 }

// Equal compares in constant time, but for the salt and the iteration count, which are no secrets.
func (k ScramKeys) Equal(other ScramKeys) bool {
	return k.iterations == other.iterations && slices.Equal(k.salt, other.salt) &&
		subtle.ConstantTimeCompare(k.clientKey[:], other.clientKey[:])&subtle.ConstantTimeCompare(k.serverKey[:], other.serverKey[:]) == 1
}

// hiddenKeys is what is shown in place of ScramKeys.
const hiddenKeys = "[SCRAM keys]"

// String does not show the keys.
func (k ScramKeys) String() string { return hiddenKeys }

// GoString does not show the keys.
func (k ScramKeys) GoString() string { return hiddenKeys }

// Format does not show the keys, whatever the verb.
func (k ScramKeys) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenKeys) }

// LogValue does not show the keys.
func (k ScramKeys) LogValue() slog.Value { return slog.StringValue(hiddenKeys) }

// MarshalText does not show the keys.
func (k ScramKeys) MarshalText() ([]byte, error) { return []byte(hiddenKeys), nil }
