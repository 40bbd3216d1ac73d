package hba

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// Mapping lets the holder of a name of another system, such as that of a certificate or of the operating system, log in as a
// user: a line of pg_ident.conf. It is not changed once it is made.
type Mapping struct {
	Map string // the map's name

	system name // exact or pattern
	user   name // exact, anyName or pattern
	insert bool // \1 in user.text stands for a part of the system's name
}

// Maps are the lines of all maps.
type Maps []Mapping

// Has reports whether there is a map of that name.
func (m Maps) Has(name string) bool {
	return slices.ContainsFunc(m, func(l Mapping) bool { return l.Map == name })
}

// Allow reports whether a map lets the holder of a system's name log in as a user. The map "" lets everybody log in as the user
// of the same name.
func (m Maps) Allow(name, system, user string) bool {
	if name == "" {
		return system == user
	}
	return slices.ContainsFunc(m, func(l Mapping) bool { return l.Map == name && l.allows(system, user) })
}

func (m *Mapping) allows(system, user string) bool {
	if !m.insert {
		return m.system.is(system) && m.user.is(user)
	}
	found := m.system.re.FindStringSubmatchIndex(system)
	if found == nil || found[2] < 0 {
		return false
	}
	before, after, _ := strings.Cut(m.user.text, inserted)
	return user == before+system[found[2]:found[3]]+after
}

// inserted stands for what the first parentheses of the system's name have matched. Only the first one in a user's name does.
const inserted = `\1`

// MapLine is a line of pg_ident.conf in parts, in its syntax: names in double quotes are no keywords.
type MapLine struct {
	Map        string // the map's name
	SystemUser string // or /regular expression
	User       string // with \1 for a part of the system's name; or all, or /regular expression
}

// Mapping returns the mapping of a line.
func (l MapLine) Mapping() (m Mapping, err error) {
	var fields []field
	for _, part := range []struct{ name, text string }{{"map", l.Map}, {"system_user", l.SystemUser}, {"user", l.User}} {
		inText, err := fieldsOf(part.text)
		switch {
		case err != nil:
			return m, fmt.Errorf("%s: %w", part.name, err)
		case len(inText) == 0:
			return m, fmt.Errorf("%s is missing", part.name)
		case len(inText) > 1:
			return m, fmt.Errorf("%s %q: write a name with spaces in double quotes", part.name, clip(part.text))
		}
		fields = append(fields, inText[0])
	}
	return mappingOf(fields)
}

// ParseMaps reads a pg_ident.conf. name begins the place of each problem, name:line. The error joins all problems.
func ParseMaps(name, text string) (maps Maps, err error) {
	err = eachLine(name, text, func(l line) error {
		m, err := mappingOf(l.fields)
		maps = append(maps, m)
		return err
	})
	if err != nil {
		return nil, err
	}
	return maps, nil
}

// mappingOf makes a mapping of the fields of a line.
func mappingOf(fields []field) (m Mapping, err error) {
	var tokens [3]token
	if len(fields) > 0 && includes(fields[0][0]) {
		return m, errIncludes
	}
	for i, what := range []string{"map", "system's user name", "user"} {
		if tokens[i], fields, err = single(fields, what); err != nil {
			return m, err
		}
	}
	if len(fields) > 0 {
		return m, fmt.Errorf("%q: the line ends after the user; write a name with spaces in double quotes", clip(fields[0][0].text))
	}
	m.Map, m.system.text, m.user.text = tokens[0].text, tokens[1].text, tokens[2].text
	if m.system.re, err = patternIn(tokens[1]); err != nil {
		return m, err
	}
	if m.user.re, err = patternIn(tokens[2]); err != nil {
		return m, err
	}
	switch user := tokens[2]; {
	case m.user.re != nil:
		m.user.kind = pattern
	case user.is("all"):
		m.user.kind = anyName
	case !user.quoted && strings.HasPrefix(user.text, "+"):
		return m, fmt.Errorf("user %q: the gateway does not know who is a member of a role; name the users, or use a regular expression: /…", clip(user.text))
	case m.system.re != nil && strings.Contains(user.text, inserted):
		m.insert = true
	}
	if m.system.re != nil {
		m.system.kind = pattern
	}
	if m.insert {
		return m, m.verifyInserted()
	}
	return m, nil
}

// verifyInserted returns why \1 in the user's name does not have a meaning.
func (m *Mapping) verifyInserted() error {
	if m.system.re.NumSubexp() == 0 {
		return fmt.Errorf(`user %q: \1 stands for what parentheses in the regular expression match, and there are none`, clip(m.user.text))
	}
	if tree, err := syntax.Parse(m.system.re.String(), syntax.Perl); err != nil || ambiguous(tree) {
		return fmt.Errorf(`user %q: \1 needs a regular expression whose alternatives (|) begin with different characters; it is %q`, clip(m.user.text), clip(m.system.text))
	}
	return nil
}

// patternIn returns the regular expression of a token, nil if it is a name.
func patternIn(t token) (*regexp.Regexp, error) {
	if !strings.HasPrefix(t.text, "/") {
		return nil, nil //nolint:nilnil // as documented
	}
	return patternOf(t.text[1:])
}
