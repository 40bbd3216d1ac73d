package httpproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
)

// DefaultMaxLoad is the default of Affinity.MaxLoad, in percent: a key of many requests loads its endpoint with at most
// one and a half times the average.
const DefaultMaxLoad = 150

// Affinity sends requests with the same key to the same endpoint as long as that endpoint is available. The upstream's
// balance must be RingHash; the key replaces the client's address in it. When an endpoint is added or removed, only its
// own keys move. Requests without the key go to the less busy of two endpoints. At most one of Header, Cookie and
// Prompt is set; the zero value is no affinity.
type Affinity struct {
	// Header is the name of a field whose value is the key.
	Header string
	// Cookie is the name of a cookie whose value is the key.
	Cookie string
	// Prompt makes the beginning of the prompt in a JSON body the key, so that a language model finds the prompt in its
	// cache. Prompt is the greatest number of bytes used, up to 64 KiB. The prompt is the text of the top-level fields
	// "messages", "prompt", "input", "system" and "instructions", as written. The body is read as for conditions on it,
	// and no further; see Config.PeekBytes.
	Prompt int
	// SetCookie gives a client without the cookie one with a random value, for all paths and hidden from scripts
	// (HttpOnly, SameSite=Lax, and Secure over TLS).
	SetCookie bool
	// MaxAge is how long clients keep the cookie; 0 = for their session.
	MaxAge time.Duration
	// MaxLoad bounds the requests at a key's endpoint, in percent of its share of all requests (see upstream.Narrow).
	// Beyond it the key goes to the next endpoint on the ring. At least 100; 0 = DefaultMaxLoad, negative = no bound.
	// Keys from a cookie have no bound.
	MaxLoad int
}

func (a Affinity) verify() error {
	kinds := 0
	for _, is := range []bool{a.Header != "", a.Cookie != "", a.Prompt != 0} {
		if is {
			kinds++
		}
	}
	switch {
	case a == Affinity{}:
		return nil
	case kinds != 1:
		return errors.New("affinity: want one of Header, Cookie and Prompt")
	case a.Header != "" && !httpwire.ValidToken(a.Header):
		return fmt.Errorf("affinity: the header %q is not a token", a.Header)
	case a.Cookie != "" && !httpwire.ValidToken(a.Cookie):
		return fmt.Errorf("affinity: the cookie %q is not a token", a.Cookie)
	case len(a.Header) > maxMatchBytes || len(a.Cookie) > maxMatchBytes:
		return fmt.Errorf("affinity: a name has at most %d bytes", maxMatchBytes)
	case a.Prompt < 0 || a.Prompt > jsonfield.MaxPrompt:
		return fmt.Errorf("affinity: %d bytes of the prompt; want 1 to %d", a.Prompt, jsonfield.MaxPrompt)
	case a.Cookie == "" && (a.SetCookie || a.MaxAge != 0):
		return errors.New("affinity: SetCookie and MaxAge need Cookie")
	case a.MaxAge < 0 || a.MaxAge > 0 && !a.SetCookie:
		return errors.New("affinity: MaxAge must not be negative, and needs SetCookie")
	case a.MaxLoad > 0 && (a.MaxLoad < 100 || a.Cookie != ""):
		return errors.New("affinity: MaxLoad is 100 or more, and not for cookies")
	}
	return nil
}

// promptLengths returns the prompt lengths of all routes in ascending order.
func promptLengths(routes []Route) (lengths []int) {
	for _, r := range routes {
		if n := r.Affinity.Prompt; n > 0 {
			lengths = append(lengths, n)
		}
	}
	slices.Sort(lengths)
	return slices.Compact(lengths)
}

// affinity is an Affinity prepared for use.
type affinity struct {
	header, cookie string // header is in lower case
	prompt         int    // index of the length in the table's; -1 = none
	sets           bool
	maxAge         string // "; Max-Age=…"
	maxLoad        int    // 0 = no bound
}

// newAffinity returns nil for the zero value.
func newAffinity(a Affinity, lengths []int) *affinity {
	if a == (Affinity{}) {
		return nil
	}
	ready := &affinity{header: string(bytes.ToLower([]byte(a.Header))), cookie: a.Cookie, prompt: slices.Index(lengths, a.Prompt), sets: a.SetCookie, maxAge: maxAgeOf(a.MaxAge)}
	switch {
	case a.Cookie != "" || a.MaxLoad < 0:
	case a.MaxLoad == 0:
		ready.maxLoad = DefaultMaxLoad
	default:
		ready.maxLoad = a.MaxLoad
	}
	return ready
}

// readsBody reports whether the key is in the body.
func (a *affinity) readsBody() bool { return a != nil && a.prompt >= 0 }

// affinityKey is the affinity key of a request.
type affinityKey struct {
	hash    [8]byte
	known   bool     // hash is set
	cookie  [16]byte // value of the cookie to set, in hexadecimal
	setting bool
}

// size returns how many bytes of hash are the key; 0 = the request has no key.
func (b *affinityKey) size() int {
	if b.known {
		return len(b.hash)
	}
	return 0
}

// take makes hash the key.
func (b *affinityKey) take(hash uint64) {
	binary.BigEndian.PutUint64(b.hash[:], hash)
	b.known = true
}

// findAffinityKey finds the key of the request where its target's affinity says. p is the peeked body, nil = none.
func (s *session) findAffinityKey(p *peek) {
	x := &s.ex
	a := x.target.affinity
	switch {
	case a == nil:
		return
	case a.header != "":
		for i := range s.req.Fields {
			if f := &s.req.Fields[i]; !x.affinityKey.known && len(f.Value) > 0 && httpwire.EqualFold(f.Name, a.header) {
				x.affinityKey.take(hashOf(f.Value))
			}
		}
	case a.cookie != "":
		s.findCookie(a)
	case p != nil && p.verdict != jsonfield.Malformed:
		if hash, ok := p.scanner.Prompt(a.prompt); ok {
			x.affinityKey.take(hash)
		}
	}
	count := affinityKnown
	if !x.affinityKey.known {
		count = affinityMissing
	} else if x.affinityKey.setting {
		count = affinitySet
	}
	x.target.traffic.Shard(int(s.shard)).Add(count, 1)
}

// findCookie takes the key from the cookie, or makes a cookie if the affinity sets one.
func (s *session) findCookie(a *affinity) {
	x := &s.ex
	if value := s.cookie(a.cookie); value != nil {
		x.affinityKey.take(hashOf(value))
	} else if a.sets {
		x.affinityKey.setting = true
		randomCookie(&x.affinityKey.cookie)
		x.affinityKey.take(hashOf(x.affinityKey.cookie[:]))
	}
}
