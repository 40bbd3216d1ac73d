package pgbouncerini

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// mainSection is the section of PgBouncer's own settings.
const mainSection = "pgbouncer"

// Fate says what becomes of a setting.
type Fate int

// The fates of settings.
const (
	Carried Fate = iota // the configuration has its equal
	Itself              // the gateway does by itself what it asks for
	Ignored             // nothing is lost without it
	Differs             // the configuration has something similar
	Missing             // the gateway has no equal, and something is lost
)

// String returns the word for reports.
func (f Fate) String() string {
	return [...]string{"carried", "not needed", "ignored", "differs", "NOT SUPPORTED"}[f]
}

// key is a setting of PgBouncer 1.25.
type key struct {
	name, def string
	check     func(text string) error // PgBouncer's syntax; nil: any text
	fate      Fate
	// note is what the documentation says of the setting, in Markdown. For settings that are not carried a report says
	// it, too.
	note string
	link string // of the documentation, for [note]; "": none
}

// value is a setting in force.
type value struct {
	text string
	at   *Entry // nil: it is the default
}

func (v value) written() bool { return v.at != nil }

// number returns the value of a key whose syntax is whole.
func (v value) number() int { n, _ := wholeNumber(v.text); return n }

// on reports whether a switch is on.
func (v value) on() bool { return v.number() != 0 }

// seconds returns the value of a key whose syntax is seconds, or whole.
func (v value) seconds() time.Duration {
	s, _ := strconv.ParseFloat(v.text, 64)
	return time.Duration(min(s*float64(time.Second), float64(maxTime)))
}

// maxTime bounds times; the gateway's longest is a year.
const maxTime = 100 * 365 * 24 * time.Hour

// list returns the values between commas.
func (v value) list() []string { return splitList(v.text) }

func splitList(text string) (items []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// same reports whether two values of a key mean the same.
func same(a, b string) bool {
	x, err1 := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	return a == b || err1 == nil && err2 == nil && x == y
}

// wholeNumber reads a number as PgBouncer does: octal behind 0, hexadecimal behind 0x.
func wholeNumber(text string) (int, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(text, "+"), 0, 32)
	if err != nil || strings.Contains(text, "_") {
		return 0, errors.New("want a whole number")
	}
	return int(n), nil
}

func whole(text string) error { _, err := wholeNumber(text); return err }

// size checks a number that a connection string or a limit has.
func size(text string) error {
	if n, err := wholeNumber(text); err != nil || n < 0 {
		return errors.New("want a whole number, 0 or more")
	}
	return nil
}

// unsetOrSize is size for settings where -1 means that there is no value.
func unsetOrSize(text string) error {
	if text == "-1" {
		return nil
	}
	return size(text)
}

func seconds(text string) error {
	if s, err := strconv.ParseFloat(text, 64); err != nil || s < 0 || math.IsNaN(s) || math.IsInf(s, 0) {
		return errors.New("want a number of seconds")
	}
	return nil
}

func portNumber(text string) error {
	if n, err := wholeNumber(text); err != nil || n < 1 || n > 65535 {
		return errors.New("want a port from 1 to 65535")
	}
	return nil
}

func unsigned(text string) error {
	if _, err := strconv.ParseUint(text, 0, 32); err != nil {
		return errors.New("want a whole number")
	}
	return nil
}

// oneOf checks names, which PgBouncer reads without regard to case.
func oneOf(names ...string) func(string) error {
	return func(text string) error {
		if slices.Contains(names, strings.ToLower(text)) {
			return nil
		}
		return fmt.Errorf("want one of %s%s", strings.Join(names, ", "), didYouMean(text, names))
	}
}

var (
	poolMode = oneOf("session", "transaction", "statement")
	sslMode  = oneOf("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
)

// keyOf returns the key of that name, nil if there is none.
func keyOf(keys []key, name string) *key {
	for i := range keys {
		if keys[i].name == name {
			return &keys[i]
		}
	}
	return nil
}

func didYouMean(text string, names []string) string {
	if hint := config.Closest(text, names); hint != "" {
		return fmt.Sprintf("; did you mean %q?", hint)
	}
	return ""
}

func clip(text string) string { return config.Clip(text) }

// checked returns the settings of a section's keys in a list, the last one of each name, and reports what PgBouncer would
// not accept. Values of secret keys are not in the message.
func checked(problems *Problems, keys []key, entries []Entry) map[string]value {
	set := map[string]value{}
	for i := range entries {
		e := &entries[i]
		k := keyOf(keys, e.Key)
		if k == nil {
			names := make([]string, len(keys))
			for i := range keys {
				names[i] = keys[i].name
			}
			*problems = append(*problems, Problem{e.Position, fmt.Sprintf("unknown setting %q%s", clip(e.Key), didYouMean(e.Key, names))})
			continue
		}
		if k.check != nil {
			if err := k.check(e.Value); err != nil {
				*problems = append(*problems, Problem{e.Position, fmt.Sprintf("%s: %q: %v", e.Key, clip(e.Value), err)})
				continue
			}
		}
		set[e.Key] = value{e.Value, e}
	}
	for _, k := range keys {
		if _, ok := set[k.name]; !ok {
			set[k.name] = value{text: k.def}
		}
	}
	return set
}
