package httpproxy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpwire"
)

// HeaderRules change the header of a message. Values may have variables; see Variables.
type HeaderRules struct {
	// Set lists fields that replace those of the same name, Add lists fields to append. Host of a request can be set.
	Set, Add []HeaderField
	// Remove lists the names of fields to drop.
	Remove []string
}

// HeaderField is a field of a header.
type HeaderField struct{ Name, Value string }

// maxHeaderRules bounds each list, because every field of a message is compared with all of them.
const maxHeaderRules = 64

// headerRules are HeaderRules prepared for use.
type headerRules struct {
	drop   []string // names to drop, in lower case
	append []headerRule
	host   template // Host of a request; nil, or a result that is no host, leaves it unchanged
}

type headerRule struct {
	name  string
	value template
}

// newHeaderRules returns nil for rules that change nothing.
func newHeaderRules(h HeaderRules, request bool) (*headerRules, error) {
	if len(h.Set)+len(h.Add)+len(h.Remove) == 0 {
		return nil, nil
	}
	if len(h.Set) > maxHeaderRules || len(h.Add) > maxHeaderRules || len(h.Remove) > maxHeaderRules {
		return nil, fmt.Errorf("a list has more than %d fields", maxHeaderRules)
	}
	r := &headerRules{}
	for _, f := range slices.Concat(h.Set, h.Add) {
		value, err := newTemplate(f.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		if request && strings.EqualFold(f.Name, "host") && len(r.append) < len(h.Set) {
			r.host = value
			continue
		}
		if err := CheckHeaderRule(f.Name, request); err != nil {
			return nil, err
		}
		r.append = append(r.append, headerRule{f.Name, value})
	}
	for _, f := range h.Set {
		r.drop = append(r.drop, strings.ToLower(f.Name))
	}
	for _, name := range h.Remove {
		if err := CheckHeaderRule(name, request); err != nil {
			return nil, err
		}
		r.drop = append(r.drop, strings.ToLower(name))
	}
	return r, nil
}

// ownFields lists fields that the gateway writes itself: about framing, or about the client and proxies.
var ownFields = []string{
	"connection", "content-length", "expect", "forwarded", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "via",
	"x-forwarded-client-cert", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-request-id",
}

// CheckHeaderRule returns an error if rules must not change a field of requests, or of responses. Host of a request can
// only be set.
func CheckHeaderRule(name string, request bool) error {
	switch {
	case !httpwire.ValidToken(name):
		return fmt.Errorf("%.40q: a header's name has letters, digits and \"-\"", name)
	case request && strings.EqualFold(name, "host"):
		return fmt.Errorf("%s: can only be set, neither added nor removed", name)
	case slices.Contains(ownFields, strings.ToLower(name)) && (request || !strings.HasPrefix(strings.ToLower(name), "x-")):
		return fmt.Errorf("%s: the gateway writes this header itself", name)
	}
	return nil
}

// withSet returns r, which may be nil, with another field to set.
func (r *headerRules) withSet(name, value string) *headerRules {
	if r == nil {
		r = &headerRules{}
	}
	fixed, _ := newTemplate(value) // no error: there is no variable
	r.drop, r.append = append(r.drop, strings.ToLower(name)), append(r.append, headerRule{name, fixed})
	return r
}

// drops reports whether a field is dropped; a nil r drops nothing.
func (r *headerRules) drops(name []byte) bool {
	if r == nil {
		return false
	}
	for _, drop := range r.drop {
		if len(drop) == len(name) && httpwire.EqualFold(name, drop) {
			return true
		}
	}
	return false
}

// field appends a field that is not dropped, such as an announcement of trailers: without those that are dropped.
func (r *headerRules) field(w *headWriter, f *httpwire.Field) {
	if r == nil || f.Known != httpwire.Trailer {
		w.field(f)
		return
	}
	passed := *f
	passed.Value = nil
	for name := range bytes.SplitSeq(f.Value, []byte{','}) {
		if name = bytes.Trim(name, " \t"); len(name) > 0 && !r.drops(name) {
			passed.Value = httpwire.AppendJoined(passed.Value, name)
		}
	}
	if len(passed.Value) > 0 {
		w.field(&passed)
	}
}

// write appends the fields to set and to add.
func (r *headerRules) write(w *headWriter, s *session) {
	if r == nil {
		return
	}
	for i := range r.append {
		f := &r.append[i]
		w.begin(f.name)
		start := len(w.dst)
		w.dst = f.value.append(w.dst, s)
		value := bytes.Trim(w.dst[start:], " \t") // left by variables without a value; invalid in HTTP/2 (RFC 9113, section 8.2.1)
		w.dst = w.dst[:start+copy(w.dst[start:], value)]
		w.end()
	}
}

// names reports whether a rule sets, adds or removes a field, whose name is in lower case.
func (h HeaderRules) names(field string) bool {
	is := func(name string) bool { return strings.EqualFold(name, field) }
	return slices.ContainsFunc(slices.Concat(h.Set, h.Add), func(f HeaderField) bool { return is(f.Name) }) || slices.ContainsFunc(h.Remove, is)
}
