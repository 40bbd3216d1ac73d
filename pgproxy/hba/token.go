package hba

import (
	"errors"
	"fmt"
	"strings"
)

// Bounds of a file. PostgreSQL has none; these are beyond what anybody maintains by hand.
const (
	maxLine   = 64 << 10 // bytes, with continuation lines
	maxLines  = 100_000  // that are not empty
	maxErrors = 100      // after which reading ends
)

// token is a part of a field: a name, with or without quotes.
type token struct {
	text   string
	quoted bool // it began with a quote, so that it is no keyword
}

// is reports whether a token is a keyword.
func (t token) is(keyword string) bool { return !t.quoted && t.text == keyword }

// field is a list of tokens with commas between them.
type field []token

// line is a line of a file with something in it.
type line struct {
	number int // of the first one, if lines are continued
	fields []field
}

// errQuote is a problem of a line.
var errQuote = errors.New(`a quoted name has no end: want " before the end of the line`)

// blank reports whether c ends a token.
func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// cutToken takes a token off the front of s, as next_token of PostgreSQL's hba.c does. ok = false means that there is none.
// more means that a comma follows, and with it another token of the same field.
func cutToken(s string) (t token, rest string, more, ok bool, err error) {
	i := 0
	for i < len(s) && (blank(s[i]) || s[i] == ',') {
		i++
	}
	var text strings.Builder
	inQuote, wasQuote, saw := false, false, false
	for ; i < len(s) && (inQuote || !blank(s[i])); i++ {
		c := s[i]
		if c == '#' && !inQuote {
			i = len(s)
			break
		}
		if c == ',' && !inQuote {
			more = true
			i++
			break
		}
		if c != '"' || wasQuote {
			text.WriteByte(c)
		}
		wasQuote = inQuote && c == '"' && !wasQuote
		if c == '"' {
			inQuote, saw = !inQuote, true
			t.quoted = t.quoted || text.Len() == 0
		}
	}
	if inQuote {
		return t, "", false, false, errQuote
	}
	t.text = text.String()
	return t, s[i:], more, saw || t.text != "", nil
}

// cutField takes a field off the front of s; it is empty at the end.
func cutField(s string) (f field, rest string, err error) {
	for more := true; more; {
		var t token
		var ok bool
		if t, s, more, ok, err = cutToken(s); err != nil {
			return nil, "", err
		}
		if ok {
			f = append(f, t)
		} else {
			break
		}
	}
	return f, s, nil
}

// fieldsOf splits a line.
func fieldsOf(s string) (fields []field, err error) {
	switch {
	case len(s) > maxLine:
		return nil, fmt.Errorf("the line is longer than %d KiB", maxLine>>10)
	case strings.Contains(s, "\x00"):
		return nil, errors.New("there is a NUL character in the line")
	}
	for {
		f, rest, err := cutField(s)
		if err != nil {
			return nil, err
		}
		if len(f) == 0 {
			return fields, nil
		}
		fields, s = append(fields, f), rest
	}
}

// eachLine calls do with each line of a file that is not empty. A backslash at the end of a line continues it. The error
// joins those of all lines, each with name and the line's number.
func eachLine(name, text string, do func(line) error) error {
	var errs []error
	text = strings.TrimPrefix(text, "\ufeff") // the mark that editors begin a file with
	number, found := 0, 0
	for rest := text; rest != "" && len(errs) < maxErrors; {
		var whole strings.Builder
		first := number + 1
		for goesOn := true; goesOn && rest != ""; {
			var one string
			one, rest, _ = strings.Cut(rest, "\n")
			number++
			one, goesOn = strings.CutSuffix(strings.TrimSuffix(one, "\r"), `\`)
			whole.WriteString(one)
		}
		fields, err := fieldsOf(whole.String())
		if found += min(len(fields), 1); found > maxLines {
			errs = append(errs, fmt.Errorf("%s:%d: there are more than %d lines", name, first, maxLines))
			break
		}
		if err == nil && len(fields) > 0 {
			err = do(line{first, fields})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", name, first, err))
		}
	}
	return errors.Join(errs...)
}

// clip shortens text for a message.
func clip(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// list returns words for a message.
func list(words []string) string { return strings.Join(words, ", ") }
