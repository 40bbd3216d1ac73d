package extension

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/headpond/headpond/peers"
)

// maxPeek bounds what is read of a request's body to find out what it is about: models are named at the top, before the messages.
const maxPeek = 1 << 20

// The ranks of nodes for a request. A header may allow lower ones than the first.
const (
	rankAll   = 1 // the node takes everything: "all"
	rankAny   = 2 // it takes any value of a key that the request has: "model=*"
	rankExact = 3 // it takes the value: "model=llama3"
)

// The headers that say with how little a request is content: 0 exact (default), 1 also any value, 2 also nodes that take everything.
var fallbackHeaders = []string{"X-Headpond-Fallback", "X-Otela-Fallback"}

// leastRank is the lowest rank that a request allows.
func leastRank(h http.Header) int {
	for _, name := range fallbackHeaders {
		switch h.Get(name) {
		case "1":
			return rankAny
		case "2":
			return rankAll
		}
	}
	return rankExact
}

// identities are the keys of a request that groups may be about, with their values.
type identities map[string]string

// rank is how well an offer fits, 0 if it does not.
func (ids identities) rank(o peers.Offer, least int) int {
	best := 0
	for _, g := range o.Groups {
		key, value, _ := strings.Cut(g, "=")
		got, has := ids[key]
		switch {
		case g == "all":
			best = max(best, rankAll)
		case has && value == "*":
			best = max(best, rankAny)
		case has && value == got:
			best = max(best, rankExact)
		}
	}
	if best < least {
		return 0
	}
	return best
}

// peek reads the beginning of a JSON body, until the wanted keys at its top are found, and returns a body that begins again. A body that is
// no object has none.
func peek(body io.ReadCloser, wanted map[string]bool) (ids identities, again io.ReadCloser) {
	ids = identities{}
	var read bytes.Buffer
	again = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&read, body), body}
	dec := json.NewDecoder(io.TeeReader(io.LimitReader(body, maxPeek), &read))
	wanted = maps.Clone(wanted)
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return ids, again
	}
	for len(wanted) > 0 && dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			break
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			break
		}
		if wanted[key] {
			ids[key] = textOf(value)
			delete(wanted, key)
		}
	}
	return ids, again
}

// textOf is a JSON value as groups write it.
func textOf(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// hasBody reports whether a request has something to peek at.
func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// Errors of routing.
var (
	errNobody   = errors.New("no node offers the service")
	errNoMatch  = errors.New("no node that offers the service takes this request")
	errNotHere  = errors.New("this gateway offers no such service")
	errNoNode   = errors.New("this gateway is no node now")
	errBadRoute = errors.New("want /v1/service/SERVICE/…, /v1/p2p/PEERID/SERVICE/… or /v1/_service/SERVICE/…")
)

// choose returns the nodes that a request to a service may go to, in the order in which to try them; providers are those that are trusted with
// it, empty: all.
func choose(n *peers.Node, service string, providers []Provider, r *http.Request) ([]peers.Target, error) {
	choice := choiceOf(providers)
	if hasBody(r) {
		var ids identities
		ids, r.Body = peek(r.Body, n.GroupKeys(service))
		least := leastRank(r.Header)
		choice.Rank = func(o peers.Offer) int { return ids.rank(o, least) }
	}
	targets, known := n.Providers(service, choice)
	switch {
	case known == 0:
		return nil, errNobody
	case len(targets) == 0:
		return nil, errNoMatch
	}
	return slices.Clip(targets), nil
}
