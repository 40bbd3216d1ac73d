// Package identity ranks providers for a request: a provider lists groups that it serves, such as "model=llama3", and
// the body of a request names the model.
//
//	g, err := identity.Parse("model=llama3")
//	…
//	rank := identity.Best(groups, least, func(key string) (string, bool) { … })
package identity

import (
	"cmp"
	"fmt"
	"strings"
)

// Rank tells how well a provider fits a request; larger is better. A request allows ranks below Exact by a header.
type Rank int

// The ranks.
const (
	None  Rank = iota
	All        // the provider accepts everything: "all"
	Any        // it accepts any value of a field in the request: "model=*"
	Exact      // it accepts the value: "model=llama3"
)

// Headers of requests and answers. OpenTela's names are known, too.
const (
	Fallback      = "X-Headpond-Fallback"
	OtelaFallback = "X-Otela-Fallback"
	Node          = "X-Computing-Node" // in an answer: the node that made it
)

// MaxGroup bounds a group in bytes.
const MaxGroup = 256

// Group is a group of requests that a provider serves.
type Group struct {
	Key   string // a field of a JSON body; empty: everything
	Value string // AnyValue: all values
}

// AnyValue as the value of a Group stands for all values.
const AnyValue = "*"

// Parse reads "key=value", "key=*" or "all".
func Parse(text string) (Group, error) {
	key, value, ok := strings.Cut(text, "=")
	switch {
	case len(text) > MaxGroup:
		return Group{}, fmt.Errorf("a group has at most %d bytes", MaxGroup)
	case text == "all":
		return Group{}, nil
	case !ok || key == "" || value == "":
		return Group{}, fmt.Errorf("group %.80q: want key=value, key=* or all", text)
	}
	return Group{key, value}, nil
}

// Least returns the lowest rank that a request allows. fallback and otela are its values of Fallback and OtelaFallback,
// "" if it has none. The former takes precedence.
func Least(fallback, otela string) Rank {
	switch cmp.Or(fallback, otela) {
	case "1":
		return Any
	case "2":
		return All
	}
	return Exact
}

// Rank returns how well the group fits a request. value returns the request's value for a key, and whether it has one.
func (g Group) Rank(value func(key string) (text string, found bool)) Rank {
	if g.Key == "" {
		return All
	}
	text, found := value(g.Key)
	switch {
	case !found:
		return None
	case g.Value == AnyValue:
		return Any
	case g.Value == text:
		return Exact
	}
	return None
}

// Best returns the best rank of a provider's groups, None if that is below least.
func Best(groups []Group, least Rank, value func(key string) (text string, found bool)) Rank {
	best := None
	for _, g := range groups {
		best = max(best, g.Rank(value))
	}
	if best < least {
		return None
	}
	return best
}
