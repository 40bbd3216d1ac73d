package nginxconf

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/internal/proxyconf"
)

// MaxFileBytes bounds a file, and maxDirectives all of them: no configuration written by people is as long.
const (
	MaxFileBytes  = 4 << 20
	maxDirectives = 50_000
	maxDepth      = 20 // of blocks and of files that include others
)

// directive is a directive, with a block or without.
type directive struct {
	at    proxyconf.Position
	words []string // the first one is its name
	block []*directive
	open  bool // it has a block
}

func (d *directive) name() string { return d.words[0] }

// arg returns the word at i, "" if there is none.
func (d *directive) arg(i int) string {
	if i < len(d.words) {
		return d.words[i]
	}
	return ""
}

// all returns the directives of a name in a block.
func (d *directive) all(name string) (all []*directive) {
	for _, sub := range d.block {
		if sub.name() == name {
			all = append(all, sub)
		}
	}
	return all
}

// Problem is what nginx would refuse.
type Problem struct {
	At   proxyconf.Position
	Text string
}

func (p Problem) Error() string { return p.At.String() + ": " + p.Text }

// reader reads files.
type reader struct {
	opt   Options
	dir   string // at which names of included files start
	count int
}

// source is a file that is being read.
type source struct {
	text  string
	i     int
	at    proxyconf.Position
	depth int
	files int
}

// file reads a file.
func (r *reader) file(path string, text []byte, depth, files int) ([]*directive, error) {
	at := proxyconf.Position{File: path, Line: 1}
	switch {
	case len(text) > MaxFileBytes:
		return nil, Problem{at, fmt.Sprintf("longer than %d MiB", MaxFileBytes>>20)}
	case !utf8.Valid(text) || strings.ContainsFunc(string(text), func(c rune) bool { return c < ' ' && c != '\n' && c != '\r' && c != '\t' || c == 0x7f }):
		return nil, Problem{at, "this is no text in UTF-8"}
	case files > maxDepth:
		return nil, Problem{at, "files include each other"}
	}
	s := &source{text: string(text), at: at, depth: depth, files: files}
	return r.block(s, false)
}

// block reads directives up to the end of a block, or of the file.
func (r *reader) block(s *source, inner bool) (all []*directive, err error) {
	var words []string
	at := s.at
	for {
		word, special, err := s.next()
		if err != nil {
			return nil, Problem{s.at, err.Error()}
		}
		if len(words) == 0 {
			at = s.at
		}
		d := &directive{at: at, words: words, open: special == '{'}
		switch {
		case special == 0 && word == nil:
			if inner || len(words) > 0 {
				return nil, Problem{s.at, "the file ends within a block or a directive"}
			}
			return all, nil
		case special == 0:
			words = append(words, *word)
			continue
		case special == '}':
			if !inner || len(words) > 0 {
				return nil, Problem{s.at, `"}" is not expected here`}
			}
			return all, nil
		case len(words) == 0:
			return nil, Problem{s.at, fmt.Sprintf("%q is not expected here", special)}
		case special == '{' && isLua(words[0]):
			if err := s.skipLua(); err != nil {
				return nil, Problem{s.at, err.Error()}
			}
		case special == '{':
			if s.depth++; s.depth > maxDepth {
				return nil, Problem{s.at, "too many blocks within each other"}
			}
			if d.block, err = r.block(s, true); err != nil {
				return nil, err
			}
			s.depth--
		}
		words = nil
		if r.count++; r.count > maxDirectives {
			return nil, Problem{s.at, fmt.Sprintf("more than %d directives", maxDirectives)}
		}
		if d.name() != "include" || d.open {
			all = append(all, d)
			continue
		}
		more, err := r.include(d, s)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
}

// include reads the files that a directive names.
func (r *reader) include(d *directive, s *source) (all []*directive, err error) {
	pattern := d.arg(1)
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(r.dir, pattern)
	}
	if filepath.Base(pattern) == "mime.types" {
		return nil, nil // types of files, which the gateway does not serve
	}
	files := []string{pattern}
	if strings.ContainsAny(pattern, "*?[") {
		if files, err = r.opt.Glob(pattern); err != nil {
			return nil, Problem{d.at, err.Error()}
		}
		slices.Sort(files)
	}
	for _, path := range files {
		text, err := r.opt.Read(path)
		if err != nil {
			return nil, Problem{d.at, fmt.Sprintf("cannot read %q", path)}
		}
		more, err := r.file(path, text, s.depth, s.files+1)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// next returns the next word, or one of the signs ";", "{" and "}"; neither at the end.
func (s *source) next() (word *string, special byte, err error) {
	for s.i < len(s.text) {
		switch c := s.text[s.i]; c {
		case '\n':
			s.at.Line++
			s.i++
		case ' ', '\t', '\r':
			s.i++
		case '#':
			for s.i < len(s.text) && s.text[s.i] != '\n' {
				s.i++
			}
		case ';', '{', '}':
			s.i++
			return nil, c, nil
		default:
			word, err := s.word()
			return &word, 0, err
		}
	}
	return nil, 0, nil
}

// isLua reports whether a directive's block is a program of OpenResty's, not directives.
func isLua(name string) bool { return strings.HasSuffix(name, "_by_lua_block") }

// skipLua goes to the end of a block of Lua.
func (s *source) skipLua() error {
	for depth := 1; s.i < len(s.text); {
		n := max(1, luaText(s.text[s.i:]))
		switch s.text[s.i] {
		case '{':
			depth++
		case '}':
			depth--
		}
		s.at.Line += strings.Count(s.text[s.i:s.i+n], "\n")
		if s.i += n; depth == 0 {
			return nil
		}
	}
	return errors.New("the file ends within a block of Lua")
}

// longLua returns the sign that ends a long comment or text of Lua at the beginning of a program, as "]==]" ends "[==["; "" if there is none.
func longLua(program string) string {
	inner, long := strings.CutPrefix(strings.TrimPrefix(program, "--"), "[")
	level := len(inner) - len(strings.TrimLeft(inner, "="))
	if !long || !strings.HasPrefix(inner[level:], "[") {
		return ""
	}
	return "]" + inner[:level] + "]"
}

// luaText returns the length of the comment or text of Lua at the beginning of a program, whose braces are none of its own; 0 if there is none. One
// that is not closed goes to the end, a text in quotes to that of its line.
func luaText(program string) int {
	end := func(sign string) int {
		if i := strings.Index(program, sign); i >= 0 {
			return i + len(sign)
		}
		return len(program)
	}
	switch c := program[0]; {
	case longLua(program) != "":
		return end(longLua(program))
	case strings.HasPrefix(program, "--"):
		return end("\n")
	case c == '"' || c == '\'':
		for i := 1; i < len(program); i++ {
			switch program[i] {
			case c, '\n':
				return i + 1
			case '\\':
				i++
			}
		}
		return len(program)
	}
	return 0
}

// word reads a word, in quotes or not.
func (s *source) word() (string, error) {
	var b strings.Builder
	quote := s.text[s.i]
	if quote == '"' || quote == '\'' {
		s.i++
	} else {
		quote = 0
	}
	for s.i < len(s.text) {
		c := s.text[s.i]
		s.i++
		switch {
		case c == '\\' && s.i < len(s.text):
			s.escape(&b)
		case quote != 0 && c == quote:
			if s.i < len(s.text) && !strings.ContainsRune(" \t\r\n;{)", rune(s.text[s.i])) {
				return "", errors.New("a word goes on after its quote")
			}
			return b.String(), nil
		case quote == 0 && strings.ContainsRune(" \t\r\n;", rune(c)), quote == 0 && c == '{' && !strings.HasSuffix(b.String(), "$"):
			s.i--
			return b.String(), nil
		default:
			if c == '\n' {
				s.at.Line++
			}
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", errors.New("a quote is not closed")
	}
	return b.String(), nil
}

// escape reads what follows a backslash.
func (s *source) escape(b *strings.Builder) {
	c := s.text[s.i]
	s.i++
	switch c {
	case '"', '\'', '\\':
		b.WriteByte(c)
	case 't':
		b.WriteByte('\t')
	case 'r':
		b.WriteByte('\r')
	case 'n':
		b.WriteByte('\n')
	default:
		b.WriteByte('\\')
		b.WriteByte(c)
	}
	if c == '\n' {
		s.at.Line++
	}
}
