package httpproxy

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
)

// Bounds of Users.
const (
	maxUserName     = 256     // in bytes; common servers accept as much
	maxPasswordCost = 15      // of bcrypt: about three seconds
	maxChecked      = 1024    // remembered credentials, in each of two halves; right and wrong ones count apart
	maxCredentials  = 4 << 10 // in bytes of base64
)

// Users are the names and passwords in a file, as htpasswd -B writes it: lines of a name, a colon and a bcrypt hash.
// While requests come, the file is read again each second, and its new content takes effect. A line with a mistake is
// ignored and the others take effect, so that a removed user has no access. If the file cannot be read, the last users
// remain. Both are logged.
//
// Checked credentials are remembered as keyed hashes, so that bcrypt runs once for each of them and not for each
// request. Methods are safe for concurrent use.
type Users struct {
	file textFile[*userList]
	key  [32]byte // key of the hashes in right and wrong

	hashed  atomic.Int64 // number of passwords for which bcrypt has run
	flying  sync.Mutex   // held for a few instructions; guards flights and their shared fields
	queue   *hashQueue   // shared by all Users
	flights map[[sha256.Size]byte]*flight
	right   remembered
	wrong   remembered // separate, so that guesses do not displace right ones
}

// userList is the content of a file. It is immutable.
type userList struct {
	hashes map[string][]byte // by name
	all    [][]byte          // the same hashes, to compare unknown names with
}

func (l *userList) size() int { return len(l.hashes) }

// another returns the hash to compare an unknown name with. A name always gets the same one, so that unknown names cost
// as much time as known ones; nil = there are no users. id is a keyed hash of the name.
func (l *userList) another(id [sha256.Size]byte) []byte {
	if len(l.all) == 0 {
		return nil
	}
	return l.all[binary.BigEndian.Uint64(id[:8])%uint64(len(l.all))]
}

// NewUsers reads the users. name is the file's name in errors and logs; read returns the file's content.
func NewUsers(name string, read func() ([]byte, error), logger *slog.Logger) (*Users, error) {
	u := &Users{file: textFile[*userList]{what: "users", name: name, read: read, parse: parseUsers, logger: logger}, queue: hashing}
	_, _ = rand.Read(u.key[:]) // never fails
	if err := u.file.open(); err != nil {
		return nil, err
	}
	return u, nil
}

var started = time.Now()

func sinceStart() time.Duration { return time.Since(started) }

// CheckUsers returns the first mistake in a users file; nil = there is none.
func CheckUsers(name string, text []byte) error {
	_, err := firstMistake("users", name, text, parseUsers)
	return err
}

// parseUsers parses a users file. It ignores lines with a mistake, and all lines of a name that occurs twice. Mistakes
// give the number of the line and nothing of its content.
func parseUsers(name string, text []byte) (l *userList, mistakes []error) {
	l = &userList{hashes: map[string][]byte{}}
	twice := map[string]bool{}
	mistakes = parseLines("users", name, text, func(line string) string {
		user, hash, mistake := parseUser(line)
		if mistake == "" && l.hashes[user] != nil {
			twice[user], mistake = true, "this user is there twice"
		}
		if mistake == "" {
			l.hashes[user] = hash
		}
		return mistake
	})
	for user := range twice {
		delete(l.hashes, user)
	}
	for _, user := range slices.Sorted(maps.Keys(l.hashes)) {
		l.all = append(l.all, l.hashes[user])
	}
	return l, mistakes
}

// parseUser parses a line. mistake is empty if there is none.
func parseUser(line string) (user string, hash []byte, mistake string) {
	user, text, ok := strings.Cut(line, ":")
	if !ok {
		return user, nil, `want a name, a colon and a bcrypt hash, as "htpasswd -nB NAME" prints`
	}
	if mistake = wrongName(user); mistake != "" {
		return user, nil, mistake
	}
	switch cost, err := bcrypt.Cost([]byte(text)); {
	case err != nil || len(text) != len("$2y$10$")+53:
		return user, nil, `the password of this user is not a bcrypt hash; "htpasswd -B" makes them`
	case cost > maxPasswordCost:
		return user, nil, fmt.Sprintf("the hash of this user has cost %d; at most %d is possible, each one more doubles the time", cost, maxPasswordCost)
	}
	return user, []byte(text), ""
}

// wrongName returns what is wrong with the name of a user; "" = nothing.
func wrongName(user string) string {
	if user == "" || len(user) > maxUserName || !httpwire.ValidValue(user) || !utf8.ValidString(user) {
		return fmt.Sprintf("the name is empty, longer than %d bytes, or has control characters", maxUserName)
	}
	return ""
}

// verdict is the result of Users.check.
type verdict uint8

const (
	unknownYet    verdict = iota // not known without waiting
	rightPassword                //
	wrongPassword                // or an unknown user
	tooBusy                      // too many checks are waiting
	givenUp                      // the request's time has passed
	clientLeft                   // the client left
)

// credentials are a name, a password, and the hash of the user with that name; nil = unknown name.
type credentials struct {
	name, password, hash []byte
	id                   [sha256.Size]byte
}

// check checks base64 credentials of a session's request. Without mayWait it never waits, and may return unknownYet.
func (u *Users) check(s *session, coded []byte, mayWait bool) (user string, v verdict) {
	if u.file.stale() {
		if !mayWait {
			return "", unknownYet
		}
		fiber.Block(u.file.readAgain)
	}
	if len(coded) > maxCredentials {
		return "", wrongPassword
	}
	var buf [256]byte
	plain, err := base64.StdEncoding.AppendDecode(buf[:0], coded)
	name, password, ok := bytes.Cut(plain, []byte(":"))
	if err != nil || !ok {
		return "", wrongPassword
	}
	list := u.file.load()
	c := credentials{name: name, password: password, hash: list.hashes[view(name)]}
	c.id = u.identify(name, password, c.hash)
	switch {
	case u.right.has(c.id):
		return string(name), rightPassword
	case u.wrong.has(c.id):
		return "", wrongPassword
	case !mayWait:
		return "", unknownYet
	}
	ctx, stop := s.wanted()
	defer stop()
	if v = u.compare(ctx, s.source(), list, c); v == rightPassword {
		return string(name), v
	}
	return "", v
}

// identify returns a keyed hash of credentials and of the hash they are compared with, so that a changed file makes
// remembered results invalid.
func (u *Users) identify(name, password, hash []byte) (id [sha256.Size]byte) {
	mac := hmac.New(sha256.New, u.key[:])
	for _, part := range [][]byte{name, hash, password} {
		var size [4]byte
		n := len(part)
		size[0], size[1], size[2], size[3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
		_, _ = mac.Write(size[:])
		_, _ = mac.Write(part)
	}
	mac.Sum(id[:0])
	return id
}

// remembered is a set of the hashes added last, at least maxChecked and at most twice as many.
type remembered struct {
	mu         sync.Mutex // held for a few instructions
	new, older map[[sha256.Size]byte]struct{}
}

func (r *remembered) has(id [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.new[id]; ok {
		return true
	}
	_, ok := r.older[id]
	if ok {
		r.put(id)
	}
	return ok
}

func (r *remembered) add(id [sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(id)
}

// put adds a hash. The caller holds mu.
func (r *remembered) put(id [sha256.Size]byte) {
	if r.new == nil || len(r.new) >= maxChecked {
		r.new, r.older = make(map[[sha256.Size]byte]struct{}), r.new
	}
	r.new[id] = struct{}{}
}
