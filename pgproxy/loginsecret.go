package pgproxy

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"

	"github.com/headpond/headpond/pgwire"
)

// loginSecret is what the gateway knows of a user's password, to log in to servers as that user. It is never changed,
// and never shown: it has to stay behind a pointer, because package fmt does not call the methods of unexported fields.
type loginSecret struct {
	password string           // "" = unknown
	md5      string           // in the form of pgwire.MD5Secret; "" = unknown
	keys     pgwire.ScramKeys // of a SCRAM secret; zero = unknown
	// unproven says that the clients have proven in another way who they are: they get no server connection that was
	// opened for clients that know the secret.
	unproven bool
}

const hiddenSecret = "[secret]"

// Format shows nothing, whatever the verb.
func (s *loginSecret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenSecret) }

// LogValue shows nothing.
func (s *loginSecret) LogValue() slog.Value { return slog.StringValue(hiddenSecret) }

// newLoginSecret returns what a client has proven to know.
func newLoginSecret(cred *credential, keys pgwire.ScramKeys) *loginSecret {
	s := &loginSecret{password: cred.password, md5: cred.md5}
	if s.password == "" {
		s.keys = keys
	}
	return s
}

// ownSecret returns what Users has of a user that need not prove to know it, to log in to servers as the user; nil = nothing
// that a server accepts.
func (s *settings) ownSecret(login *Login) *loginSecret {
	cred := s.credentials[login.User]
	if cred == nil || cred.md5 == "" || !login.asClient() {
		return nil
	}
	return &loginSecret{password: cred.password, md5: cred.md5, unproven: true}
}

// equal reports whether two secrets are the same; nil is equal to nil only.
func (s *loginSecret) equal(other *loginSecret) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.unproven == other.unproven && subtle.ConstantTimeCompare([]byte(s.password), []byte(other.password))&
		subtle.ConstantTimeCompare([]byte(s.md5), []byte(other.md5)) == 1 && s.keys.Equal(other.keys)
}
