package console

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/pgwire"
)

// maxMessage bounds a client's message, in bytes: no command is longer than a name, and drivers' preludes are short.
const maxMessage = 64 << 10

// maxShown bounds what errors and the log show of a client's text, in bytes.
const maxShown = 200

// clip returns the beginning of a text, valid and on one line.
func clip(text string) string {
	clipped := text[:min(len(text), maxShown)]
	for len(clipped) < len(text) && len(clipped) > 0 && !utf8.ValidString(clipped[max(0, len(clipped)-utf8.UTFMax):]) {
		clipped = clipped[:len(clipped)-1]
	}
	clipped = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(clipped, "�"))
	if len(text) > maxShown {
		clipped += "…"
	}
	return clipped
}

// token is a word, a quoted name, a string or a symbol of a command.
type token struct {
	kind byte // 'w', '"', '\'', or the symbol itself
	text string
}

// maxTokens bounds the tokens that are kept of a command: no command has as many, so that the others do not matter.
const maxTokens = 32

// statement is one command of a client's text.
type statement struct {
	tokens []token // at most maxTokens
	text   string  // as clip returns it
}

// word returns the token with an index in lower case, "" unless it is a word.
func (s *statement) word(i int) string {
	if i >= len(s.tokens) || s.tokens[i].kind != 'w' {
		return ""
	}
	return strings.ToLower(s.tokens[i].text)
}

// argument returns the only token after the command as a name: a word as it is, or a quoted name. ok is false if there are
// more, or something else. No token is the empty name.
func (s *statement) argument() (name string, ok bool) {
	switch {
	case len(s.tokens) == 1:
		return "", true
	case len(s.tokens) == 2 && (s.tokens[1].kind == 'w' || s.tokens[1].kind == '"' && s.tokens[1].text != ""):
		return s.tokens[1].text, true
	}
	return "", false
}

// split returns the commands of a text without the empty ones.
func split(text string) (list []statement, err error) {
	var tokens []token
	begin, at := 0, 0
	end := func() {
		if len(tokens) > 0 {
			list = append(list, statement{tokens, clip(strings.TrimSpace(text[begin:at]))})
		}
		tokens = nil
	}
	for {
		if at, err = skipSpace(text, at); err != nil {
			return nil, err
		}
		if at == len(text) {
			end()
			return list, nil
		}
		if text[at] == ';' {
			end()
			at++
			begin = at
			continue
		}
		var t token
		if t, at, err = next(text, at); err != nil {
			return nil, err
		}
		if len(tokens) < maxTokens {
			tokens = append(tokens, t)
		}
	}
}

// skipSpace returns where the next token begins, behind white space and comments.
func skipSpace(text string, at int) (int, error) {
	for at < len(text) {
		switch rest := text[at:]; {
		case strings.IndexByte(" \t\n\r\f\v", rest[0]) >= 0:
			at++
		case strings.HasPrefix(rest, "--"):
			line, _, _ := strings.Cut(rest, "\n")
			at += len(line)
		case strings.HasPrefix(rest, "/*"):
			n := commentLength(rest)
			if n < 0 {
				return 0, unterminated("comment", rest)
			}
			at += n
		default:
			return at, nil
		}
	}
	return at, nil
}

// commentLength returns the length of the comment that text begins with, which may hold others; -1 if it does not end.
func commentLength(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			i++
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// next returns the token at a position, and where the next begins.
func next(text string, at int) (token, int, error) {
	c := text[at]
	if c == '"' || c == '\'' {
		value, n := quoted(text[at:], c)
		if n < 0 {
			return token{}, 0, unterminated("quoted text", text[at:])
		}
		return token{c, value}, at + n, nil
	}
	end := at
	for end < len(text) && wordByte(text[end]) {
		end++
	}
	if end == at {
		return token{c, text[at : at+1]}, at + 1, nil
	}
	return token{'w', text[at:end]}, end, nil
}

// wordByte reports whether a byte belongs to words. Database names may have dashes and be in any language.
func wordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-' || c == '$' || c >= utf8.RuneSelf
}

// quoted returns the content of the quoted text at the beginning, and its length with the quotes; -1 if it does not end.
func quoted(text string, quote byte) (value string, n int) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		if text[i] != quote {
			b.WriteByte(text[i])
			continue
		}
		if i+1 < len(text) && text[i+1] == quote {
			b.WriteByte(quote)
			i++
			continue
		}
		return b.String(), i + 1
	}
	return "", -1
}

func unterminated(what, text string) error {
	return failed(pgwire.StateSyntaxError, helpHint, "unterminated %s at or near %q", what, clip(text))
}

// commandError is an error for the client that does not end the session.
type commandError struct{ code, message, hint string }

func (e *commandError) Error() string { return e.message }

func failed(code, hint, format string, args ...any) error {
	return &commandError{code, fmt.Sprintf(format, args...), hint}
}

const helpHint = "Use SHOW HELP;"

// unknown is the error for a command that the console does not have.
func (s *statement) unknown() error {
	return failed(pgwire.StateSyntaxError, helpHint, "invalid command '%s', use SHOW HELP;", s.text)
}
