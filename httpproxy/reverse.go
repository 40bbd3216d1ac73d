package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpwire"
)

// LocationRewrite changes the addresses in Location, Content-Location and Refresh of answers, so that a server which knows
// only its own address sends clients to the route. The zero value changes nothing.
type LocationRewrite struct {
	// Own replaces the server's own addresses. A URL with the address of the endpoint, or with the Host that the request
	// had, loses scheme and host, so that it leads to wherever the client has found the route; one with the client's Host
	// and https stays if the client has used http, as that server wants the client to change to https. Of a path,
	// with or without a host, what Route.StripPrefix or Route.Rewrite have done is undone, if Rewrite is a text that ends in
	// {rest} or {path}. A path of the route's stays.
	Own bool
	// Replace lists beginnings of addresses with what takes their place. They come before Own, and the first one that
	// fits is used.
	Replace []Replacement
}

// CookieRewrite changes the attributes of cookies that servers set. The zero value changes nothing.
type CookieRewrite struct {
	// Own leaves out a Domain that the client's Host is not in, with which the client would refuse the cookie, and changes
	// Path as LocationRewrite.Own changes paths.
	Own bool
	// Domain lists domains, with or without a dot before them, with those that take their place. Path lists beginnings of
	// paths. Both come before Own, and the first one that fits is used.
	Domain, Path []Replacement
	// Secure and HTTPOnly add these attributes to cookies without them.
	Secure, HTTPOnly bool
	// SameSite is SameSite of all cookies; "" = as the server says.
	SameSite SameSite
}

// Replacement is a text and what takes its place.
type Replacement struct{ From, To string }

// SameSite is the attribute of a cookie that says to which requests of other sites' pages clients add it.
type SameSite string

// The values of SameSite.
const (
	SameSiteLax    SameSite = "lax"
	SameSiteStrict SameSite = "strict"
	SameSiteNone   SameSite = "none"
)

// Values lists all values that a configuration file may have.
func (SameSite) Values() []string {
	return []string{string(SameSiteLax), string(SameSiteStrict), string(SameSiteNone)}
}

// maxReplacements bounds each list, because an address is compared with all of them.
const maxReplacements = 64

// CheckLocation returns an error if an entry of LocationRewrite.Replace is not possible. To may have the variables
// {scheme} and {host}.
func CheckLocation(r Replacement) error {
	if scheme, rest, ok := strings.Cut(r.From, "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		if scheme != "http" && scheme != "https" || !httpwire.ValidHost([]byte(host)) {
			return fmt.Errorf("%.60q: want a path, or the beginning of a URL, such as http://old.example/shop/", r.From)
		}
	} else if err := checkCookiePath(r.From); err != nil {
		return fmt.Errorf("%.60q: want a path, or the beginning of a URL, such as http://old.example/shop/", r.From)
	}
	names, err := TemplateVariables(r.To, false)
	for _, name := range names {
		if name != "scheme" && name != "host" {
			return fmt.Errorf("the variables here are {scheme} and {host}, not {%.40s}", name)
		}
	}
	if err != nil {
		return err
	}
	if CheckRedirect(strings.ReplaceAll(r.To, "$", "$$"), nil) != nil { // a dollar is one
		return fmt.Errorf("%.60q: want a path or a URL such as https://{host}/shop/", r.To)
	}
	return nil
}

// CheckCookiePath returns an error if an entry of CookieRewrite.Path is not possible.
func CheckCookiePath(r Replacement) error {
	return errors.Join(checkCookiePath(r.From), checkCookiePath(r.To))
}

func checkCookiePath(path string) error {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ';' || r == '\\' }) {
		return fmt.Errorf("%.60q: want a path such as /shop", path)
	}
	return nil
}

// CheckCookieDomain returns an error if an entry of CookieRewrite.Domain is not possible.
func CheckCookieDomain(r Replacement) error {
	for _, domain := range []string{r.From, r.To} {
		inName := func(r rune) bool {
			return r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z'
		}
		if name := strings.TrimPrefix(domain, "."); name == "" || strings.Trim(name, ".") != name || strings.ContainsFunc(name, func(r rune) bool { return !inName(r) }) {
			return fmt.Errorf("%.60q: want a domain such as shop.example", domain)
		}
	}
	return nil
}

// verifyReverse checks what Route has about addresses in answers.
func (r Route) verifyReverse() error {
	l, c := r.Locations, r.SetCookies
	if r.answersItself() && (l.Own || c.Own || len(l.Replace)+len(c.Domain)+len(c.Path) > 0 || c.Secure || c.HTTPOnly || c.SameSite != "") {
		return errors.New("Locations and SetCookies are for answers of an upstream")
	}
	if c.SameSite != "" && !slices.Contains(c.SameSite.Values(), string(c.SameSite)) {
		return fmt.Errorf("SetCookies: SameSite cannot be %.40q", string(c.SameSite))
	}
	for _, list := range []struct {
		all   []Replacement
		check func(Replacement) error
	}{{l.Replace, CheckLocation}, {c.Domain, CheckCookieDomain}, {c.Path, CheckCookiePath}} {
		if len(list.all) > maxReplacements {
			return fmt.Errorf("more than %d replacements", maxReplacements)
		}
		for _, one := range list.all {
			if err := list.check(one); err != nil {
				return fmt.Errorf("a replacement in answers: %w", err)
			}
		}
	}
	return nil
}

// reverse is what a route changes in answers back to what its clients know. It never changes.
type reverse struct {
	locations, cookies bool
	own, ownCookies    bool
	replace            []replacement
	domains, paths     []Replacement
	secure, httpOnly   bool
	sameSite           string // "; SameSite=…"; "" = as the server says
	mapped             bool   // client and server are what begins paths of the route, and what they become for the server
	client, server     string // both without a slash at the end
	below              bool   // the route has only what is below client
}

type replacement struct {
	from string
	to   template
}

// newReverse returns nil if r changes nothing. rewrite is r.Rewrite.
func newReverse(r Route, rewrite template) *reverse {
	l, c := r.Locations, r.SetCookies
	b := &reverse{own: l.Own, ownCookies: c.Own, domains: c.Domain, paths: c.Path, secure: c.Secure, httpOnly: c.HTTPOnly}
	b.locations = l.Own || len(l.Replace) > 0
	for _, one := range l.Replace {
		to, _ := newTemplate(one.To) // no error: verifyReverse has made it
		b.replace = append(b.replace, replacement{one.From, to})
	}
	if c.SameSite != "" {
		b.sameSite = "; SameSite=" + strings.ToUpper(string(c.SameSite[:1])) + string(c.SameSite[1:])
	}
	b.cookies = c.Own || len(c.Domain)+len(c.Path) > 0 || c.Secure || c.HTTPOnly || c.SameSite != ""
	if !b.locations && !b.cookies {
		return nil
	}
	b.client, b.server, b.mapped = pathsOf(r, rewrite)
	b.below = b.client != "" && strings.HasSuffix(r.Path, "/")
	return b
}

// pathsOf returns what begins the paths of a route, and what the server gets in its place; false = paths do not change, or
// cannot be told from the server's.
func pathsOf(r Route, rewrite template) (client, server string, ok bool) {
	prefix := (&url.URL{Path: strings.TrimSuffix(r.Path, "/")}).EscapedPath()
	if r.StripPrefix {
		return prefix, "", prefix != ""
	}
	if len(rewrite) == 0 || !rewrite[len(rewrite)-1].variable {
		return "", "", false
	}
	for _, part := range rewrite[:len(rewrite)-1] {
		if part.variable {
			return "", "", false
		}
		server += part.text
	}
	switch rewrite[len(rewrite)-1].text {
	case "rest":
		if r.PathMatch == PathPrefix {
			client = prefix
		}
	case "path":
	default: // a group
		return "", "", false
	}
	server = strings.TrimSuffix(server, "/")
	return client, server, client != server
}

// rewrites writes a field of an answer that the route changes; false = the field stays.
func (b *reverse) rewrites(w *headWriter, s *session, f *httpwire.Field) bool {
	if b == nil {
		return false
	}
	name := ""
	switch {
	case httpwire.EqualFold(f.Name, "location"):
		name = "Location"
	case httpwire.EqualFold(f.Name, "refresh"):
		name = "Refresh"
	case httpwire.EqualFold(f.Name, "content-location"):
		name = "Content-Location"
	case httpwire.EqualFold(f.Name, "set-cookie"):
		name = "Set-Cookie"
	}
	switch {
	case name == "" || len(f.Value) == 0:
		return false
	case name == "Set-Cookie":
		if b.cookies {
			w.begin(name)
			b.cookie(w, s, f.Value)
			w.end()
		}
		return b.cookies
	case !b.locations:
		return false
	}
	w.begin(name)
	address, after := f.Value, []byte(nil)
	if name == "Refresh" {
		var before []byte
		before, address, after = refreshURL(f.Value)
		w.dst = append(w.dst, before...)
	}
	b.location(w, s, address)
	w.dst = append(w.dst, after...)
	w.end()
	return true
}

// refreshURL returns the URL in a Refresh field, such as `5; url="/next"`, and what is before and after it. Without one, all
// is before it.
func refreshURL(value []byte) (before, address, after []byte) {
	i := bytes.IndexAny(value, ";,")
	if i < 0 {
		return value, nil, nil
	}
	rest := bytes.TrimLeft(value[i+1:], " \t")
	if len(rest) < 4 || !httpwire.EqualFold(rest[:3], "url") {
		return value, nil, nil
	}
	if rest = bytes.TrimLeft(rest[3:], " \t"); len(rest) == 0 || rest[0] != '=' {
		return value, nil, nil
	}
	rest = bytes.TrimLeft(rest[1:], " \t")
	if len(rest) > 0 && (rest[0] == '"' || rest[0] == '\'') {
		quote := rest[0]
		rest = rest[1:]
		if end := bytes.IndexByte(rest, quote); end >= 0 {
			after = rest[end:]
			rest = rest[:end]
		}
	}
	return value[:len(value)-len(after)-len(rest)], rest, after
}

// location appends an address of the server's as the client knows it.
func (b *reverse) location(w *headWriter, s *session, address []byte) {
	start := len(w.dst)
	for i := range b.replace {
		if r := &b.replace[i]; beginsWith(address, r.from) {
			w.dst = r.to.append(w.dst, s)
			appendRest(w, start, address[len(r.from):])
			return
		}
	}
	path := address
	if b.own {
		path = s.withoutOrigin(w, address)
	}
	within := len(path) > 0 && path[0] == '/' && !namesHost(path) // an absolute path
	if len(path) == len(address) && !(b.own && b.mapped && within) {
		w.dst = append(w.dst, address...)
		return
	}
	prefix, n := b.back(path)
	w.dst = append(w.dst, prefix...)
	if b.below && prefix != "" && (n == len(path) || path[n] != '/') {
		w.dst = append(w.dst, '/')
	}
	appendRest(w, start, path[n:])
}

// back returns how many bytes of a server's path to replace by prefix, to get the client's.
func (b *reverse) back(path []byte) (prefix string, n int) {
	switch {
	case !b.mapped || !beginsWith(path, b.server):
		return "", 0
	case len(b.client) > len(b.server) && beginsWith(path, b.client): // written by a server that knows the client's paths
		return "", 0
	}
	return b.client, len(b.server)
}

// beginsWith reports whether an address begins with from, in whole segments of its path.
func beginsWith(address []byte, from string) bool {
	if len(address) < len(from) || view(address[:len(from)]) != from {
		return false
	}
	return from == "" || len(address) == len(from) || from[len(from)-1] == '/' || strings.IndexByte("/?#", address[len(from)]) >= 0
}

// namesHost reports whether what begins with a slash is the name of a host to browsers: they leave out tabs, and a backslash
// is a slash to them.
func namesHost(path []byte) bool {
	rest := bytes.TrimLeft(path[1:], "\t")
	return len(rest) > 0 && (rest[0] == '/' || rest[0] == '\\')
}

// appendRest appends the rest of an address to what w has from start on, with one slash between the two. What it makes of
// a path is no name of a host.
func appendRest(w *headWriter, start int, rest []byte) {
	n := len(w.dst)
	switch ends := n > start && w.dst[n-1] == '/'; {
	case ends && len(rest) > 0 && rest[0] == '/':
		rest = rest[1:]
	case ends || len(rest) > 0 && rest[0] == '/':
	case n == start, len(rest) > 0 && rest[0] != '?' && rest[0] != '#':
		w.dst = append(w.dst, '/')
	}
	w.dst = append(w.dst, rest...)
	if made := w.dst[start:]; made[0] == '/' && namesHost(made) {
		w.dst = append(w.dst, "/."...) // the dot is removed when the address is resolved
		copy(w.dst[start+2:], w.dst[start:])
		copy(w.dst[start:], "/.")
	}
}

// withoutOrigin returns an address of the server's own without scheme and host, and all other ones as they are.
func (s *session) withoutOrigin(w *headWriter, address []byte) []byte {
	scheme := ""
	for _, begin := range [...]string{"https://", "http://", "//"} {
		if len(address) > len(begin) && httpwire.EqualFold(address[:len(begin)], begin) {
			scheme = begin
			break
		}
	}
	if scheme == "" {
		return address
	}
	host := address[len(scheme):]
	end := bytes.IndexAny(host, `/?#\`)
	if end < 0 {
		end = len(host)
	}
	if !s.isOwn(w, scheme, view(host[:end])) {
		return address
	}
	return host[end:]
}

// isOwn reports whether a host, with or without a port, is the server's own in an address of that scheme.
func (s *session) isOwn(w *headWriter, scheme, host string) bool {
	if sameHost(scheme, host, view(s.req.Host)) {
		return scheme != "https://" || s.cameByTLS()
	}
	if sameHost(scheme, host, s.ex.result.Endpoint) {
		return true
	}
	rules := s.ex.target.requestRules
	if rules == nil || rules.host == nil {
		return false
	}
	n := len(w.dst)
	return sameHost(scheme, host, view(s.appendHost(w.dst)[n:])) // behind the head, which overwrites it
}

// sameHost compares two hosts with or without ports in addresses of a scheme.
func sameHost(scheme, a, b string) bool {
	return a != "" && strings.EqualFold(withoutPort(scheme, a), withoutPort(scheme, b))
}

// withoutPort returns a host without the port that is the scheme's own.
func withoutPort(scheme, host string) string {
	switch scheme {
	case "http://":
		return strings.TrimSuffix(host, ":80")
	case "https://":
		return strings.TrimSuffix(host, ":443")
	}
	return host
}

// cameByTLS reports whether the client has used https, if necessary by what a trusted proxy says.
func (s *session) cameByTLS() bool {
	if s.trusted() {
		for i := range s.req.Fields {
			if f := &s.req.Fields[i]; f.Known == httpwire.XForwardedProto {
				return httpwire.EqualFold(f.Value, "https")
			}
		}
	}
	return s.isTLS != nil
}

// hostPrefix begins names of cookies for which clients want Path=/.
const hostPrefix = "__host-"

// cookie appends a value of Set-Cookie with the attributes that the client needs.
func (b *reverse) cookie(w *headWriter, s *session, value []byte) {
	pair, rest, _ := bytes.Cut(value, []byte{';'})
	w.dst = append(w.dst, bytes.TrimRight(pair, " \t")...)
	fixed := len(pair) >= len(hostPrefix) && httpwire.EqualFold(pair[:len(hostPrefix)], hostPrefix)
	secure, httpOnly := false, false
	for len(rest) > 0 {
		var attribute []byte
		attribute, rest, _ = bytes.Cut(rest, []byte{';'})
		name, value, _ := bytes.Cut(attribute, []byte{'='})
		name, value = bytes.TrimSpace(name), bytes.TrimSpace(value)
		switch {
		case httpwire.EqualFold(name, "secure"):
			secure = true
		case httpwire.EqualFold(name, "httponly"):
			httpOnly = true
		case b.sameSite != "" && httpwire.EqualFold(name, "samesite"):
			continue
		case len(value) > 0 && httpwire.EqualFold(name, "domain"):
			if to, keep := b.domain(s, view(value)); !keep {
				continue
			} else if to != "" {
				w.dst = append(append(w.dst, "; Domain="...), to...)
				continue
			}
		case len(value) > 0 && value[0] == '/' && !fixed && httpwire.EqualFold(name, "path"):
			w.dst = append(w.dst, "; Path="...)
			b.cookiePath(w, value)
			continue
		}
		w.dst = append(append(w.dst, ';'), bytes.TrimRight(attribute, " \t")...)
	}
	if b.secure && !secure {
		w.dst = append(w.dst, "; Secure"...)
	}
	if b.httpOnly && !httpOnly {
		w.dst = append(w.dst, "; HttpOnly"...)
	}
	w.dst = append(w.dst, b.sameSite...)
}

// domain returns the domain that takes the place of a cookie's; "" = it stays if keep is set.
func (b *reverse) domain(s *session, domain string) (to string, keep bool) {
	domain = strings.TrimPrefix(domain, ".")
	for i := range b.domains {
		if strings.EqualFold(domain, strings.TrimPrefix(b.domains[i].From, ".")) {
			return b.domains[i].To, true
		}
	}
	host := requestHost(view(s.req.Host))
	n := len(host) - len(domain)
	return "", !b.ownCookies || n >= 0 && strings.EqualFold(host[n:], domain) && (n == 0 || host[n-1] == '.')
}

// cookiePath appends the path of a cookie as the client knows it.
func (b *reverse) cookiePath(w *headWriter, path []byte) {
	for i := range b.paths {
		if r := &b.paths[i]; beginsWith(path, r.From) {
			start := len(w.dst)
			w.dst = append(w.dst, r.To...)
			appendRest(w, start, path[len(r.From):])
			return
		}
	}
	prefix, n := "", 0
	if b.ownCookies {
		prefix, n = b.back(path)
	}
	w.dst = append(w.dst, prefix...)
	if path = path[n:]; len(path) > 1 || prefix == "" && len(path) == 1 { // "/" behind a prefix would exclude the prefix itself
		w.dst = append(w.dst, path...)
	} else if prefix == "" {
		w.dst = append(w.dst, '/')
	}
}
