package extension

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/headpond/headpond/internal/identity"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/peers"
)

// The part of a request's body that is searched for the fields of groups. It is at least minPeek,
// to detect repeated fields, and at most maxPeek. Requests usually have the model before the
// messages.
const (
	minPeek = 64 << 10
	maxPeek = 1 << 20
)

// leastRank is the lowest rank that a request allows.
func leastRank(h http.Header) identity.Rank {
	return identity.Least(h.Get(identity.Fallback), h.Get(identity.OtelaFallback))
}

// identities are the fields of a body that groups may match, with their values.
type identities map[string]string

// rank returns how well an offer matches, 0 if it does not.
func (ids identities) rank(o peers.Offer, least identity.Rank) int {
	var groups []identity.Group
	for _, text := range o.Groups {
		if g, err := identity.Parse(text); err == nil {
			groups = append(groups, g)
		}
	}
	return int(identity.Best(groups, least, func(key string) (string, bool) {
		value, has := ids[key]
		return value, has
	}))
}

// peek reads the beginning of a JSON body, and returns its wanted fields and a body that begins
// again. A body that is not an object has no fields. The error is errTwice if a field occurs twice.
func peek(body io.ReadCloser, wanted map[string]bool) (ids identities, again io.ReadCloser, err error) {
	fields := fieldsOf(wanted)
	plan, err := jsonfield.NewPlan(fields)
	if err != nil {
		return nil, body, err // cannot happen: fieldsOf returns valid fields
	}
	var read bytes.Buffer
	var scanner jsonfield.Scanner
	scanner.Reset(plan)
	verdict, ended := jsonfield.More, false
	for verdict == jsonfield.More && !ended && read.Len() < maxPeek && (read.Len() < minPeek || !allFound(&scanner, len(fields))) {
		read.Grow(pieceBytes)
		n, err := body.Read(read.AvailableBuffer()[:min(pieceBytes, maxPeek-read.Len())])
		piece := read.AvailableBuffer()[:n]
		_, _ = read.Write(piece)
		verdict = scanner.Feed(piece)
		ended = err != nil // the error is returned again after the bytes read
	}
	again = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&read, body), body}
	ids = identities{}
	switch {
	case verdict == jsonfield.Ambiguous:
		return nil, again, errTwice
	case verdict == jsonfield.Malformed, verdict == jsonfield.More && ended:
		return ids, again, nil
	}
	for i, name := range fields {
		if text, ok := scanner.Text(i); ok {
			ids[name] = text
		} else if scanner.Found(i) {
			ids[name] = "" // no group has an empty value
		}
	}
	return ids, again, nil
}

func allFound(s *jsonfield.Scanner, fields int) bool {
	for i := range fields {
		if !s.Found(i) {
			return false
		}
	}
	return true
}

// pieceBytes is how much of a body is read at a time.
const pieceBytes = 16 << 10

// fieldsOf returns the valid ones of the keys of groups, which other nodes choose.
func fieldsOf(keys map[string]bool) (fields []string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if jsonfield.CheckPath(key) == nil && len(fields) < jsonfield.MaxFields {
			fields = append(fields, key)
		}
	}
	return fields
}

// hasBody reports whether a request has a body.
func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// Errors of routing.
var (
	errNobody   = errors.New("no node offers the service")
	errTwice    = errors.New("the body has a field that groups are about twice")
	errNoMatch  = errors.New("no node accepts this request to the service")
	errNotHere  = errors.New("this gateway offers no such service")
	errNoNode   = errors.New("this gateway is no node now")
	errBadRoute = errors.New("want /v1/service/SERVICE/…, /v1/p2p/PEERID/SERVICE/… or /v1/_service/SERVICE/…")
)

// choose returns the nodes to which a request to a service may go, in the order in which to try
// them. providers are the permitted nodes; empty: all.
func choose(n *peers.Node, service string, providers []Provider, r *http.Request) ([]peers.Target, error) {
	choice := choiceOf(providers)
	if hasBody(r) {
		var ids identities
		var err error
		if ids, r.Body, err = peek(r.Body, n.GroupKeys(service)); err != nil {
			return nil, err
		}
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
