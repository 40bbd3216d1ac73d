package haproxycfg

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// users returns the file for a userlist, or why there is none.
func (c *converter) users(name string) (file, why string) {
	name, groups, some := strings.Cut(name, " ")
	i := slices.IndexFunc(c.sections, func(s *section) bool { return s.kind == "userlist" && s.name == name })
	switch {
	case i < 0:
		return "", fmt.Sprintf("there is no userlist %q", name)
	case c.opt.Passwords == "":
		return "", "the passwords of userlists are written to a file with -passwords DIR"
	}
	of := strings.TrimSpace(name + " " + groups)
	file = filepath.Join(c.opt.Passwords, strings.Map(func(c rune) rune {
		if isName(c) || c == '-' {
			return c
		}
		return '-'
	}, of))
	var text strings.Builder
	for _, l := range c.sections[i].lines {
		if l.words[0] != "user" || len(l.words) < 4 || some && !c.sections[i].member(l, strings.Fields(groups)) {
			continue
		}
		hash := l.words[3]
		if l.words[2] == "insecure-password" {
			made, err := bcrypt.GenerateFromPassword([]byte(hash), bcrypt.DefaultCost)
			if err != nil {
				return "", "a password is too long"
			}
			hash = string(made)
		}
		line := l.words[1] + ":" + hash + "\n"
		if err := httpproxy.CheckUsers("userlist", []byte(line)); err != nil || strings.ContainsAny(l.words[1]+hash, "\r\n") {
			c.out.Reports.Add(l.at, "user "+l.words[1], proxyconf.Missing, "its hash is not one of bcrypt: write a new one with htpasswd -B to %s", file)
			continue
		}
		text.WriteString(line)
	}
	if text.Len() == 0 || httpproxy.CheckUsers("userlist", []byte(text.String())) != nil {
		return "", "it has no user with a password or a hash of bcrypt"
	}
	if !slices.ContainsFunc(c.out.Files, func(f proxyconf.File) bool { return f.Path == file }) {
		c.out.Files = append(c.out.Files, proxyconf.File{Path: file, Of: "userlist " + of, Data: []byte(text.String())})
	}
	return file, ""
}

// member reports whether a user of a userlist is in one of some groups.
func (s *section) member(user line, groups []string) bool {
	if n := slices.Index(user.words, "groups"); n > 0 && slices.ContainsFunc(strings.Split(user.arg(n+1), ","), func(g string) bool { return slices.Contains(groups, g) }) {
		return true
	}
	return slices.ContainsFunc(s.lines, func(l line) bool {
		return l.words[0] == "group" && slices.Contains(groups, l.arg(1)) && l.arg(2) == "users" && slices.Contains(strings.Split(l.arg(3), ","), user.arg(1))
	})
}

// period returns the time over which counters of a kind count by the clients' addresses; "" if they do not, or over several.
func (c *converter) period(kind string) (period string) {
	for _, p := range c.proxies {
		for _, l := range p.lines {
			if track := slices.IndexFunc(l.words, func(w string) bool { return strings.HasPrefix(w, "track-sc") }); track > 0 && l.arg(track+1) != "src" {
				return ""
			}
			if l.words[0] != "stick-table" {
				continue
			}
			_, rest, ok := strings.Cut(strings.Join(l.words, " "), kind+"(")
			text, _, _ := strings.Cut(rest, ")")
			d, valid := parseTime(text, time.Millisecond)
			if !ok || !valid {
				continue
			}
			shown := yamltext.Short(min(max(d, 10*time.Millisecond), time.Hour))
			if period != "" && period != shown {
				return ""
			}
			period = shown
		}
	}
	return period
}
