package identity_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/identity"
)

func Example() {
	var groups []identity.Group
	for _, text := range []string{"model=llama3", "model=*"} {
		g, err := identity.Parse(text)
		if err != nil {
			panic(err)
		}
		groups = append(groups, g)
	}
	about := func(model string) func(string) (string, bool) {
		return func(key string) (string, bool) { return model, key == "model" }
	}
	fmt.Println(identity.Best(groups, identity.Least("", ""), about("llama3")) == identity.Exact)
	fmt.Println(identity.Best(groups, identity.Least("", ""), about("gpt-4")) == identity.None)
	fmt.Println(identity.Best(groups, identity.Least("", "1"), about("gpt-4")) == identity.Any)
	// Output:
	// true
	// true
	// true
}

func TestParse(t *testing.T) {
	for text, want := range map[string]identity.Group{"all": {}, "a=b": {Key: "a", Value: "b"}, "a=b=c": {Key: "a", Value: "b=c"}, "a=*": {Key: "a", Value: "*"}} {
		if g, err := identity.Parse(text); err != nil || g != want {
			t.Errorf("%q: %+v, %v", text, g, err)
		}
	}
	for _, text := range []string{"", "a", "=b", "a=", "ALL", strings.Repeat("a", 200) + "=" + strings.Repeat("b", 200)} {
		if g, err := identity.Parse(text); err == nil {
			t.Errorf("%.20q: %+v", text, g)
		}
	}
}

// TestRanks: the best of a provider's groups counts, and a header sets the lowest permitted rank.
func TestRanks(t *testing.T) {
	for _, tc := range []struct {
		groups, header string
		want           identity.Rank
	}{
		{"model=a", "0", identity.Exact}, {"model=b", "0", identity.None}, {"model=b", "2", identity.None},
		{"model=*", "0", identity.None}, {"model=*", "1", identity.Any}, {"model=*", "2", identity.Any}, {"other=*", "2", identity.None},
		{"all", "1", identity.None}, {"all", "2", identity.All}, {"all", "3", identity.None},
		{"all,model=*,model=a", "0", identity.Exact}, {"model=b,model=*,all", "1", identity.Any}, {"", "", identity.None},
	} {
		var groups []identity.Group
		for text := range strings.SplitSeq(tc.groups, ",") {
			if g, err := identity.Parse(text); err == nil {
				groups = append(groups, g)
			}
		}
		got := identity.Best(groups, identity.Least(tc.header, "2"), func(key string) (string, bool) { return "a", key == "model" })
		if got != tc.want {
			t.Errorf("%s with %q: %d, want %d", tc.groups, tc.header, got, tc.want)
		}
	}
}
