package proxyconf

import (
	"regexp/syntax"
	"slices"
	"strings"
)

// maxHosts bounds the hosts of an expression: each is a route.
const maxHosts = 50

// HostLike returns the condition that a host matches an expression, without regard to case, if the expression stands for a few
// hosts, or for all hosts below one, as ^(www\.)?shop\.example$ and \.shop\.example$; nil if it does not.
func HostLike(expression string) *Cond {
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil
	}
	texts, ok := textsOf(re.Simplify())
	if !ok {
		return nil
	}
	var all []*Cond
	for _, text := range texts {
		name, whole := strings.CutSuffix(text, "\x02")
		name, anchored := strings.CutPrefix(strings.ToLower(name), "\x01")
		switch {
		case !whole || strings.ContainsAny(name, "\x01\x02"):
			return nil
		case anchored && hostName(name):
			all = append(all, When(Atom{Kind: Host, Value: name}))
		case !anchored && strings.HasPrefix(name, ".") && hostName(name[1:]):
			all = append(all, When(Atom{Kind: Host, Value: "*" + name}))
		default:
			return nil
		}
	}
	if all == nil {
		return nil
	}
	return Either(all...)
}

// hostName reports whether a text may be the name of a host in a route, which is not an address.
func hostName(text string) bool {
	last := text[strings.LastIndexByte(text, '.')+1:]
	return text != "unix" && len(text) < 254 && strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(text, ".") && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
	})
}

// textsOf returns the texts that an expression stands for, with \x01 at the beginning and \x02 at the end of the whole text; false
// if there are too many.
func textsOf(re *syntax.Regexp) (texts []string, ok bool) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return []string{""}, true
	case syntax.OpBeginText, syntax.OpBeginLine:
		return []string{"\x01"}, true
	case syntax.OpEndText, syntax.OpEndLine:
		return []string{"\x02"}, true
	case syntax.OpLiteral:
		return []string{string(re.Rune)}, true
	case syntax.OpCapture:
		return textsOf(re.Sub[0])
	case syntax.OpQuest:
		texts, ok = textsOf(re.Sub[0])
		return append(texts, ""), ok
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			for c := re.Rune[i]; c <= re.Rune[i+1]; c++ {
				if texts = append(texts, string(c)); len(texts) > maxHosts {
					return nil, false
				}
			}
		}
		return texts, len(texts) > 0
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			more, ok := textsOf(sub)
			if texts = append(texts, more...); !ok || len(texts) > maxHosts {
				return nil, false
			}
		}
		return texts, true
	case syntax.OpConcat:
		texts = []string{""}
		for _, sub := range re.Sub {
			more, ok := textsOf(sub)
			if !ok || len(texts)*len(more) > maxHosts {
				return nil, false
			}
			var next []string
			for _, a := range texts {
				for _, b := range more {
					next = append(next, a+b)
				}
			}
			texts = next
		}
		slices.Sort(texts)
		return slices.Compact(texts), true
	}
	return nil, false
}
