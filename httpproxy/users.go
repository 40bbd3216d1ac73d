package httpproxy

import (
	"bufio"
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
	maxUsersBytes   = 1 << 20 // of a file, in bytes
	maxUserName     = 256     // in bytes; common servers accept as much
	maxPasswordCost = 15      // of bcrypt: about three seconds
	maxChecked      = 1024    // remembered credentials, in each of two halves; right and wrong ones count apart
	maxCredentials  = 4 << 10 // in bytes of base64
	checkAgainAfter = time.Second
	usersWriteTime  = 20 * time.Millisecond // after this time a file being written is complete
)

// Users are the names and passwords in a file, as htpasswd -B writes it: lines of a name, a colon and a bcrypt hash.
// While requests come, the file is read again each second, and its new content takes effect. A line with a mistake is
// ignored and the others take effect, so that a removed user has no access. If the file cannot be read, the last users
// remain. Both are logged.
//
// Checked credentials are remembered as keyed hashes, so that bcrypt runs once for each of them and not for each
// request. Methods are safe for concurrent use.
type Users struct {
	name   string
	read   func() ([]byte, error)
	logger *slog.Logger
	key    [32]byte // key of the hashes in right and wrong

	list      atomic.Pointer[userList]
	checkedAt atomic.Int64 // when the file was last read, in nanoseconds since the program began
	hashed    atomic.Int64 // number of passwords for which bcrypt has run
	reading   sync.Mutex   // held while the file is read; only taken without waiting
	failures  int          // failed readings since the last success; guarded by reading
	flying    sync.Mutex   // held for a few instructions; guards flights and their shared fields
	queue     *hashQueue   // shared by all Users
	flights   map[[sha256.Size]byte]*flight
	right     remembered
	wrong     remembered // separate, so that guesses do not displace right ones
}

// userList is the content of a file. It is immutable.
type userList struct {
	text   []byte
	hashes map[string][]byte // by name
	all    [][]byte          // the same hashes, to compare unknown names with
}

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
	u := &Users{name: name, read: read, logger: logger, queue: hashing}
	_, _ = rand.Read(u.key[:]) // never fails
	text, err := read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := CheckUsers(name, text); err != nil {
		return nil, err
	}
	list, _ := parseUsers(name, text)
	u.list.Store(list)
	u.checkedAt.Store(int64(sinceStart()))
	return u, nil
}

var started = time.Now()

func sinceStart() time.Duration { return time.Since(started) }

// CheckUsers returns the first mistake in a users file; nil = there is none.
func CheckUsers(name string, text []byte) error {
	list, mistakes := parseUsers(name, text)
	switch {
	case len(mistakes) > 0:
		return mistakes[0]
	case len(list.hashes) == 0:
		return fmt.Errorf("%s has no users", name)
	}
	return nil
}

// parseUsers parses a users file. It ignores lines with a mistake, and all lines of a name that occurs twice. Mistakes
// give the number of the line and nothing of its content.
func parseUsers(name string, text []byte) (l *userList, mistakes []error) {
	l = &userList{text: text, hashes: map[string][]byte{}}
	if len(text) > maxUsersBytes {
		return l, []error{fmt.Errorf("%s has more than %d bytes; it is not a file of users", name, maxUsersBytes)}
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxUsersBytes+1)
	twice := map[string]bool{}
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		user, hash, mistake := parseUser(string(line))
		if mistake == "" && l.hashes[user] != nil {
			twice[user], mistake = true, "this user is there twice"
		}
		if mistake != "" {
			mistakes = append(mistakes, fmt.Errorf("%s:%d: %s", name, n, mistake))
			continue
		}
		l.hashes[user] = hash
	}
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
	if user == "" || len(user) > maxUserName || !httpwire.ValidValue(user) || !utf8.ValidString(user) {
		return user, nil, fmt.Sprintf("the name is empty, longer than %d bytes, or has control characters", maxUserName)
	}
	switch cost, err := bcrypt.Cost([]byte(text)); {
	case err != nil || len(text) != len("$2y$10$")+53:
		return user, nil, `the password of this user is not a bcrypt hash; "htpasswd -B" makes them`
	case cost > maxPasswordCost:
		return user, nil, fmt.Sprintf("the hash of this user has cost %d; at most %d is possible, each one more doubles the time", cost, maxPasswordCost)
	}
	return user, []byte(text), ""
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
	now := sinceStart()
	if now-time.Duration(u.checkedAt.Load()) > checkAgainAfter {
		if !mayWait {
			return "", unknownYet
		}
		fiber.Block(func() { u.readAgain(now) })
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
	list := u.list.Load()
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

// readAgain replaces the users if the file has changed. A file with mistakes is read a second time, because it may be
// half-written.
func (u *Users) readAgain(now time.Duration) {
	if !u.reading.TryLock() {
		return
	}
	defer u.reading.Unlock()
	defer u.checkedAt.Store(int64(now))
	text, err := u.read()
	if err == nil && bytes.Equal(text, u.list.Load().text) {
		u.failures = 0
		return
	}
	list, mistakes := parseUsers(u.name, text)
	if err != nil || len(mistakes) > 0 || len(list.hashes) == 0 {
		time.Sleep(usersWriteTime)
		if text, err = u.read(); err == nil {
			list, mistakes = parseUsers(u.name, text)
		}
	}
	if err != nil {
		if u.failures++; u.failures == 1 {
			u.logger.Warn("users file could not be reloaded; the old users stay in force", "file", u.name, "error", err)
		}
		return
	}
	u.failures = 0
	u.list.Store(list)
	if len(mistakes) > 0 {
		u.logger.Warn("users file reloaded with mistakes; lines with mistakes are ignored", "file", u.name, "users", len(list.hashes),
			"mistakes", len(mistakes), "error", mistakes[0])
		return
	}
	u.logger.Info("users file reloaded", "file", u.name, "users", len(list.hashes))
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
