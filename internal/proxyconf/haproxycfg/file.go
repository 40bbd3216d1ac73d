package haproxycfg

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/proxyconf"
)

// MaxFileBytes bounds a file: no configuration written by people is as long.
const MaxFileBytes = 4 << 20

// line is a directive.
type line struct {
	at    proxyconf.Position
	words []word // the first one is its name
	no    bool   // it had "no" before it
}

// name is the directive's name for reports.
func (l line) name() string {
	n := 1
	if slices.Contains([]string{"option", "http-request", "http-response", "http-after-response", "tcp-request", "tcp-response", "http-check", "tcp-check", "timeout", "stats", "compression", "stick", "server"}, l.words[0]) {
		n = 2
	}
	if len(l.words) > 2 && l.words[0] == "tcp-request" {
		n = 3
	}
	name := strings.Join(l.words[:min(n, len(l.words))], " ")
	if l.no {
		name = "no " + name
	}
	return name
}

// arg returns the word at i, "" if there is none.
func (l line) arg(i int) string {
	if i < len(l.words) {
		return l.words[i]
	}
	return ""
}

// section is a part of the file: "frontend web" and its lines.
type section struct {
	at               proxyconf.Position
	kind, name, from string
	lines            []line
}

// kinds are the sections of HAProxy.
var kinds = []string{"global", "defaults", "frontend", "backend", "listen", "userlist", "resolvers", "peers", "mailers", "program", "cache", "ring", "http-errors", "log-forward", "log-profile", "fcgi-app", "crt-store", "traces", "acme"}

// Problem is what HAProxy would refuse.
type Problem struct {
	At   proxyconf.Position
	Text string
}

func (p Problem) Error() string { return p.At.String() + ": " + p.Text }

// read splits a file into sections.
func (c *converter) read(path string, text []byte) error {
	if len(text) > MaxFileBytes {
		return Problem{proxyconf.Position{File: path, Line: 1}, fmt.Sprintf("longer than %d MiB", MaxFileBytes>>20)}
	}
	if !utf8.Valid(text) || strings.ContainsRune(string(text), 0) {
		return Problem{proxyconf.Position{File: path, Line: 1}, "this is no text in UTF-8"}
	}
	n := 0
	for raw := range strings.Lines(string(text)) {
		n++
		at := proxyconf.Position{File: path, Line: n}
		words, err := split(strings.TrimRight(raw, "\r\n"), c.opt.Env, func(name string) {
			c.out.Reports.Add(at, "$"+name, proxyconf.Differs, "the value that this variable of the environment has now is in the configuration")
		})
		if err != nil {
			return Problem{at, err.Error()}
		}
		if len(words) == 0 {
			continue
		}
		if err := c.add(line{at: at, words: words}); err != nil {
			return err
		}
	}
	return nil
}

// add adds a directive to the last section, or begins one.
func (c *converter) add(l line) error {
	for _, w := range l.words {
		if strings.ContainsFunc(w, func(c rune) bool {
			return c < ' ' && c != '\n' && c != '\r' && c != '\t' || c == 0x7f || c == utf8.RuneError
		}) {
			return Problem{l.at, "a control character"}
		}
	}
	name := l.words[0]
	switch {
	case strings.HasPrefix(name, "."):
		if slices.Contains([]string{".notice", ".warning", ".diag", ".alert"}, name) {
			return nil
		}
		return Problem{l.at, fmt.Sprintf("%.40q: conditions in the file are not supported; write what holds as a file without them", name)}
	case slices.Contains(kinds, name):
		s := &section{at: l.at, kind: name, name: l.arg(1)}
		for i := 2; i+1 < len(l.words); i++ {
			if l.words[i] == "from" {
				s.from = l.words[i+1]
			}
		}
		if name == "defaults" && l.arg(1) == "from" {
			s.name, s.from = "", l.arg(2)
		}
		c.sections = append(c.sections, s)
		return nil
	case len(c.sections) == 0:
		return Problem{l.at, fmt.Sprintf("%.60q is in no section, such as \"frontend\"%s", name, didYouMean(name, kinds))}
	}
	if (name == "no" || name == "default") && len(l.words) > 1 {
		if name == "default" {
			return nil // as if the line were not there
		}
		l.no, l.words = true, l.words[1:]
	}
	s := c.sections[len(c.sections)-1]
	s.lines = append(s.lines, l)
	return nil
}

func didYouMean(text string, names []string) string {
	if hint := config.Closest(text, names); hint != "" {
		return fmt.Sprintf("; did you mean %q?", hint)
	}
	return ""
}

// path returns the absolute name of a file. Relative ones start at the working directory of HAProxy; here that of the file.
func (c *converter) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.opt.Dir, name)
}

// based is path, for files that a directive of global gives a folder.
func (c *converter) based(base, name string) string {
	for _, s := range c.sections {
		for _, l := range s.lines {
			if s.kind == "global" && l.words[0] == base && l.arg(1) != "" && !filepath.IsAbs(name) {
				name = filepath.Join(l.arg(1), name)
			}
		}
	}
	return c.path(name)
}
