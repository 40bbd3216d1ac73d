package httpproxy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
)

// APIKeys are the keys in a file, with the names of their users: lines of a name, a colon and the SHA-256 hash of a key
// in hexadecimal digits. A user may have several keys, so that a new one can be in use before the old one is removed.
// While requests come, the file is read again each second, as that of Users is. Methods are safe for concurrent use.
//
// A hash without salt is enough, because keys are long and random; do not put hashes of passwords there.
type APIKeys struct{ file textFile[apiKeyList] }

// apiKeyList is the content of a file: names by the hash of the key. It is immutable.
type apiKeyList map[[sha256.Size]byte]string

func (l apiKeyList) size() int { return len(l) }

// NewAPIKeys reads the keys. name is the file's name in errors and logs; read returns the file's content.
func NewAPIKeys(name string, read func() ([]byte, error), logger *slog.Logger) (*APIKeys, error) {
	k := &APIKeys{file: textFile[apiKeyList]{what: "keys", name: name, read: read, parse: parseAPIKeys, logger: logger}}
	if err := k.file.open(); err != nil {
		return nil, err
	}
	return k, nil
}

// CheckAPIKeys returns the first mistake in a file of keys; nil = there is none.
func CheckAPIKeys(name string, text []byte) error {
	_, err := firstMistake("keys", name, text, parseAPIKeys)
	return err
}

// parseAPIKeys ignores lines with a mistake, and all lines of a key that occurs twice.
func parseAPIKeys(name string, text []byte) (l apiKeyList, mistakes []error) {
	l = apiKeyList{}
	twice := map[[sha256.Size]byte]bool{}
	mistakes = parseLines("keys", name, text, func(line string) string {
		user, hash, mistake := parseAPIKey(line)
		switch _, known := l[hash]; {
		case mistake != "":
		case known:
			twice[hash], mistake = true, "this key is there twice"
		default:
			l[hash] = user
		}
		return mistake
	})
	for hash := range twice {
		delete(l, hash)
	}
	return l, mistakes
}

// parseAPIKey parses a line. mistake is empty if there is none.
func parseAPIKey(line string) (user string, hash [sha256.Size]byte, mistake string) {
	user, text, ok := strings.Cut(line, ":")
	if !ok {
		return user, hash, `want a name, a colon and the SHA-256 hash of a key, as "headpond apikey NAME" prints`
	}
	if mistake = wrongName(user); mistake != "" {
		return user, hash, mistake
	}
	if len(text) != hex.EncodedLen(len(hash)) {
		return user, hash, `the hash of this user's key does not have 64 hexadecimal digits; "headpond apikey NAME" makes a key and its line`
	}
	if _, err := hex.Decode(hash[:], []byte(text)); err != nil {
		return user, hash, "the hash of this user's key has signs that are no hexadecimal digits"
	}
	return user, hash, ""
}

// NewAPIKey returns a new key of 256 random bits, and the line of a file of APIKeys that gives it to user. The error says
// what is wrong with the name.
func NewAPIKey(user string) (key, line string, err error) {
	if mistake := wrongName(user); mistake != "" {
		return "", "", errors.New(mistake)
	}
	if strings.Contains(user, ":") || user[0] == '#' || strings.TrimSpace(user) != user {
		return "", "", errors.New(`the name has a colon, or "#" or a space at an end`)
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	key = "hp_" + base64.RawURLEncoding.EncodeToString(random)
	hash := sha256.Sum256([]byte(key))
	return key, user + ":" + hex.EncodeToString(hash[:]), nil
}
