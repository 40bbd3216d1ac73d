package pgproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgwire"
)

// Users maps names to secrets: a password, "md5" and a digest, or a SCRAM-SHA-256 verifier, as
// in pg_authid.rolpassword. A user with an empty one exists and cannot log in, as one without a password there. Do not log it.
type Users map[string]string

// maxUserLine bounds a line of a user list, in bytes.
const maxUserLine = 64 << 10

// Verify reports every reason, joined, why auth cannot be done with these users; each wraps ErrConfig, none shows a secret.
func (u Users) Verify(auth Auth) error {
	var errs []error
	for _, err := range u.problems(auth) {
		errs = append(errs, fmt.Errorf("%w: %w", ErrConfig, err))
	}
	return errors.Join(errs...)
}

// problems is Verify, in the order of the names.
func (u Users) problems(auth Auth) (errs []error) {
	if auth != AuthTrust && len(u) == 0 {
		errs = append(errs, fmt.Errorf("auth %s needs users", auth))
	}
	for _, user := range slices.Sorted(maps.Keys(u)) {
		if _, err := newCredential(user, u[user]); err != nil {
			errs = append(errs, fmt.Errorf("user %q: %w", user, err))
		} else if auth == AuthSCRAM && pgwire.IsMD5Secret(u[user]) {
			errs = append(errs, fmt.Errorf("user %q has %w", user, errMD5Secret))
		}
	}
	return errs
}

// errMD5Secret is why a user cannot log in.
var errMD5Secret = errors.New("an md5 secret, which auth scram-sha-256 cannot verify: store the password or a SCRAM-SHA-256 secret, or use md5")

// maxBadLines bounds the lines of a user list that an error names.
const maxBadLines = 100

// ParseUsers reads a user list in PgBouncer's form: a line `"user" "secret"` for each user, a quote
// in a name or secret doubled. Empty lines and lines beginning with ; or # are skipped; text
// between the two, or after the secret, is ignored. The error joins those of each bad line, wraps
// ErrConfig and never shows a secret.
func ParseUsers(r io.Reader) (Users, error) {
	users := Users{}
	var errs []error
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxUserLine)
	for n := 1; len(errs) < maxBadLines && lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == ';' || line[0] == '#' {
			continue
		}
		user, rest, ok := cutQuoted(line)
		secret, _, ok2 := cutQuoted(rest[max(0, strings.IndexByte(rest, '"')):])
		if !ok || !ok2 || user == "" {
			errs = append(errs, fmt.Errorf("%w: user list line %d: want \"user\" \"secret\", both in double quotes", ErrConfig, n))
			continue
		}
		if _, dup := users[user]; dup {
			errs = append(errs, fmt.Errorf("%w: user list line %d: user %q appears twice", ErrConfig, n, user))
		}
		users[user] = secret
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, fmt.Errorf("%w: user list: %w", ErrConfig, err))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return users, nil
}

// cutQuoted takes a double-quoted string off the front of s.
func cutQuoted(s string) (value, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", s, false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		return b.String(), s[i+1:], true
	}
	return "", s, false
}

// credential is a user's secret, ready to verify with. Its methods may be called from any goroutine.
type credential struct {
	md5      string               // MD5Secret form, "" if only SCRAM is possible
	password string               // of which the verifier is still to be computed, see verifier
	once     sync.Once            // computes it
	computed atomic.Bool          // scram is valid
	scram    pgwire.ScramVerifier // the zero value if only md5 is possible
}

// newCredential returns nil for an empty secret: authenticate takes the user for one that does not exist.
func newCredential(user, secret string) (*credential, error) {
	switch {
	case secret == "":
		return nil, nil //nolint:nilnil // as the comment says
	case pgwire.IsMD5Secret(secret):
		return &credential{md5: secret}, nil
	case strings.HasPrefix(secret, pgwire.MechanismSCRAM+"$"):
		v, err := pgwire.ParseScramVerifier(secret)
		if err != nil {
			return nil, err
		}
		c := &credential{scram: v}
		c.computed.Store(true)
		return c, nil
	}
	return &credential{md5: pgwire.MD5Secret(user, secret), password: secret}, nil
}

// iterations counts users by the iterations of their SCRAM secrets. The zero value is ready. Its methods may be called from
// any goroutine.
type iterations struct {
	mu    sync.Mutex // held for a few instructions
	users map[int]int
	usual int
}

// maxIterations bounds the different numbers that are counted. A server's secrets have a few.
const maxIterations = 64

// add counts a user, if it has such a secret.
func (n *iterations) add(c *credential) {
	if !c.hasScram() {
		return
	}
	its := pgwire.ScramIterations // of what is computed from a password
	if c.computed.Load() {
		its = c.scram.Iterations
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.users == nil {
		n.users = map[int]int{}
	}
	if n.users[its] == 0 && len(n.users) == maxIterations {
		return
	}
	if n.users[its]++; n.users[its] > n.users[n.usual] {
		n.usual = its
	}
}

// most returns how many iterations most users have, 0 if there are no users.
func (n *iterations) most() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.usual
}

// hasScram reports whether SCRAM can be done for the user.
func (c *credential) hasScram() bool { return c != nil && (c.password != "" || c.computed.Load()) }

// verifier returns the user's SCRAM verifier. It computes for milliseconds the first time, if the secret is a password,
// and does not block other sessions of the loop.
func (c *credential) verifier() pgwire.ScramVerifier {
	if !c.computed.Load() {
		fiber.Block(func() {
			c.once.Do(func() {
				c.scram, _ = pgwire.NewScramVerifier(c.password, nil, pgwire.ScramIterations) // fails on bad lengths only
				c.computed.Store(true)
			})
		})
	}
	return c.scram
}
