package haproxycfg

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// word is one word of a line.
type word = string

// split returns the words of a line, as HAProxy reads it: backslashes and quotes of both kinds, variables of the environment
// within double quotes, and comments. used is called with the name of each variable.
func split(text string, env func(string) (string, bool), used func(name string)) (words []word, err error) {
	s := splitter{text: text, env: env, used: used}
	for s.i < len(text) {
		if err := s.next(); err != nil {
			return nil, err
		}
	}
	if s.weak || s.strong {
		return nil, errors.New("a quote is not closed")
	}
	s.end()
	return s.words, nil
}

type splitter struct {
	text         string
	i            int
	env          func(string) (string, bool)
	used         func(string)
	word         []byte
	began        bool // there is a word, perhaps an empty one
	weak, strong bool // within quotes
	words        []word
}

func (s *splitter) end() {
	if s.began {
		s.words = append(s.words, string(s.word))
	}
	s.word, s.began = nil, false
}

// next reads what is at s.i.
func (s *splitter) next() error {
	c := s.text[s.i]
	s.i++
	switch {
	case s.strong && c != '\'':
		s.word = append(s.word, c)
	case c == '\'' && !s.weak:
		s.strong, s.began = !s.strong, true
	case c == '"':
		s.weak, s.began = !s.weak, true
	case c == '\\':
		return s.escape()
	case c == '$' && s.weak:
		return s.variable()
	case s.weak:
		s.word = append(s.word, c)
	case c == '#':
		s.i = len(s.text)
	case c == ' ' || c == '\t' || c == '\r':
		s.end()
	default:
		s.word, s.began = append(s.word, c), true
	}
	return nil
}

// escape reads what follows a backslash.
func (s *splitter) escape() error {
	if s.i == len(s.text) {
		return errors.New("a backslash ends the line")
	}
	c := s.text[s.i]
	s.i++
	s.began = true
	switch {
	case s.weak && !strings.ContainsRune("\\\"$nrtx# '", rune(c)):
		s.word = append(s.word, '\\', c)
	case c == 'n':
		s.word = append(s.word, '\n')
	case c == 'r':
		s.word = append(s.word, '\r')
	case c == 't':
		s.word = append(s.word, '\t')
	case c == 'x':
		n, err := strconv.ParseUint(s.text[s.i:min(s.i+2, len(s.text))], 16, 8)
		if err != nil {
			return errors.New("\\x wants two hexadecimal digits")
		}
		s.i += 2
		s.word = append(s.word, byte(n))
	case strings.ContainsRune("\\ #'\"$", rune(c)):
		s.word = append(s.word, c)
	default:
		s.word = append(s.word, '\\', c)
	}
	return nil
}

// variable reads the name of a variable, and inserts its value.
func (s *splitter) variable() error {
	rest := s.text[s.i:]
	var name, def string
	var hasDef bool
	if strings.HasPrefix(rest, "{") {
		inner, _, ok := strings.Cut(rest[1:], "}")
		if !ok {
			return errors.New("${ has no }")
		}
		s.i += len(inner) + 2
		name, def, hasDef = strings.Cut(inner, "-")
		if strings.HasSuffix(name, "[*]") {
			return fmt.Errorf("${%.40s}: several words in one variable are not supported; write them out", name)
		}
	} else {
		n := strings.IndexFunc(rest, func(c rune) bool { return !isName(c) })
		if n < 0 {
			n = len(rest)
		}
		name = rest[:n]
		s.i += n
	}
	if name == "" || strings.IndexFunc(name, func(c rune) bool { return !isName(c) }) >= 0 {
		return fmt.Errorf("%.40q is not the name of a variable", name)
	}
	s.used(name)
	value, ok := s.env(name)
	if !ok && hasDef {
		value = def
	}
	s.word, s.began = append(s.word, value...), true
	return nil
}

func isName(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
