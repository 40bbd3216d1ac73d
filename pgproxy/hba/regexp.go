package hba

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// patternOf compiles the regular expression of a token after its slash. It is not anchored. It finds the leftmost match, and of
// these the longest, as PostgreSQL does; its dot matches every character.
func patternOf(expr string) (*regexp.Regexp, error) {
	bad := func(why string) error { return fmt.Errorf("regular expression %q: %s", clip(expr), why) }
	if c := foreignEscape(expr); c != 0 {
		return nil, bad(fmt.Sprintf(`\%c is not supported`, c))
	}
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		if said, ok := errors.AsType[*syntax.Error](err); ok {
			return nil, bad(said.Code.String())
		}
		return nil, bad(err.Error())
	}
	if reluctant(tree) {
		return nil, bad("repetition that prefers less, such as *?, is not supported")
	}
	re, err := regexp.Compile("(?s:" + expr + ")")
	if err != nil {
		return nil, bad(err.Error())
	}
	re.Longest()
	return re, nil
}

// foreignEscape returns the first letter or digit after a backslash that means something else in PostgreSQL's syntax, or
// nothing; 0 = there is none.
func foreignEscape(expr string) byte {
	const same = "dwsDWSAntrfv"
	for i := 0; i+1 < len(expr); i++ {
		if expr[i] != '\\' {
			continue
		}
		i++
		if c := expr[i]; alphanumeric(c) && strings.IndexByte(same, c) < 0 {
			return c
		}
	}
	return 0
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// reluctant reports whether an expression has a repetition that prefers less.
func reluctant(tree *syntax.Regexp) bool {
	switch tree.Op {
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		if tree.Flags&syntax.NonGreedy != 0 {
			return true
		}
	}
	for _, sub := range tree.Sub {
		if reluctant(sub) {
			return true
		}
	}
	return false
}

// ambiguous reports whether two alternatives of an expression can begin with the same character. What its parentheses match is
// then not always what they match in PostgreSQL, where each part is as long as possible.
func ambiguous(tree *syntax.Regexp) bool {
	if tree.Op == syntax.OpAlternate {
		var seen []rune
		for _, sub := range tree.Sub {
			begins := firstOf(sub)
			if len(begins) == 0 || overlap(seen, begins) {
				return true
			}
			seen = append(seen, begins...)
		}
	}
	return slices.ContainsFunc(tree.Sub, ambiguous)
}

// firstOf returns the ranges of the characters that the matches of an expression begin with, nil if it may match nothing.
func firstOf(tree *syntax.Regexp) (ranges []rune) {
	switch tree.Op {
	case syntax.OpConcat, syntax.OpCapture, syntax.OpPlus:
		return firstOf(tree.Sub[0])
	case syntax.OpCharClass:
		return tree.Rune
	case syntax.OpLiteral:
		c := tree.Rune[0]
		ranges = []rune{c, c}
		for other := unicode.SimpleFold(c); tree.Flags&syntax.FoldCase != 0 && other != c; other = unicode.SimpleFold(other) {
			ranges = append(ranges, other, other)
		}
	}
	return ranges
}

// overlap reports whether two lists of ranges have a character in common.
func overlap(a, b []rune) bool {
	for i := 0; i < len(a); i += 2 {
		for j := 0; j < len(b); j += 2 {
			if a[i] <= b[j+1] && b[j] <= a[i+1] {
				return true
			}
		}
	}
	return false
}
