package config

import (
	"fmt"
	"strings"
)

// expand replaces ${NAME} and ${NAME:-default} in text with the environment's values; $${ stands for a plain ${.
// Defaults are not expanded again. With groups, ${1} stays, as a group of a regular expression. The error says what to
// change and never shows a value.
func expand(text string, groups bool, lookup func(string) (string, bool)) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "${")
		if !found {
			b.WriteString(text)
			return b.String(), nil
		}
		if literal, ok := strings.CutSuffix(before, "$"); ok {
			b.WriteString(literal)
			b.WriteString("${")
			text = after
			continue
		}
		b.WriteString(before)
		ref, rest, closed := strings.Cut(after, "}")
		if !closed {
			return "", fmt.Errorf(`"${" is never closed; write ${NAME}, or $${ for a plain "${"`)
		}
		if groups && ref != "" && strings.Trim(ref, "0123456789") == "" {
			b.WriteString("${" + ref + "}")
			text = rest
			continue
		}
		value, err := variable(ref, lookup)
		switch {
		case err != nil && groups:
			return "", fmt.Errorf("%w; a group of the path is $%[2]s or $${%[2]s}", err, ref)
		case err != nil:
			return "", err
		}
		b.WriteString(value)
		text = rest
	}
}

// variable returns the value of the text between ${ and }.
func variable(ref string, lookup func(string) (string, bool)) (string, error) {
	name, fallback, hasFallback := strings.Cut(ref, ":-")
	if !validVariable(name) {
		return "", fmt.Errorf("%q is not the name of an environment variable; write ${NAME} or ${NAME:-default}", name)
	}
	value, ok := lookup(name)
	switch {
	case ok && (value != "" || !hasFallback):
		return value, nil
	case hasFallback:
		return fallback, nil
	}
	return "", fmt.Errorf("environment variable %q is not set; set it, or write ${%s:-default}", name, name)
}

func validVariable(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
