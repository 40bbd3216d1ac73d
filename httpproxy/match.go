package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/identity"
	"github.com/headpond/headpond/internal/jsonfield"
)

// PathMatch is how Route.Path is compared with the decoded path of a request.
type PathMatch int

const (
	// PathPrefix: Path is a prefix in whole segments. The default.
	PathPrefix PathMatch = iota
	// PathExact: Path is the whole path.
	PathExact
	// PathRegexp: Path is a regular expression of package regexp (RE2) that matches the whole path.
	PathRegexp
)

// AnyValue as FieldMatch.Value matches any value.
const AnyValue = "*"

// ValueMatch is how FieldMatch.Value is compared.
type ValueMatch int

const (
	// ValueExact: Value is the whole value, or AnyValue. The default.
	ValueExact ValueMatch = iota
	// ValuePrefix: the value begins with Value.
	ValuePrefix
	// ValueSuffix: the value ends with Value.
	ValueSuffix
	// ValueContains: Value is a part of the value.
	ValueContains
	// ValueRegexp: Value is a regular expression of package regexp (RE2) that matches the whole value.
	ValueRegexp
)

// FieldMatch is a condition on something with a name and a value. Value is compared byte by byte, as Match says; AnyValue
// only requires that the name exists.
type FieldMatch struct {
	Name, Value string
	Match       ValueMatch
}

// Bounds of a route's conditions.
const (
	maxConditions = 32   // of one route and kind: each condition searches the whole head
	maxMatchBytes = 256  // of a name or a value
	maxRegexp     = 1024 // bytes of an expression
)

// conditions are a route's conditions besides host and path. They never change.
type conditions struct {
	methods        []string
	headers, query []condition
	cookies, body  []condition
	preflight      bool // a preflight request has the method that it is about
}

type condition struct {
	name, value string
	any         bool
	match       ValueMatch
	expression  *regexp.Regexp // of ValueRegexp
	field       int            // for a body field: its index in the table's plan
}

// holds reports whether a value meets the condition.
func (c *condition) holds(value string) bool {
	switch c.match {
	case ValuePrefix:
		return strings.HasPrefix(value, c.value)
	case ValueSuffix:
		return strings.HasSuffix(value, c.value)
	case ValueContains:
		return strings.Contains(value, c.value)
	case ValueRegexp:
		return c.expression.MatchString(value)
	}
	return c.any || value == c.value
}

// newConditions returns nil if r has no conditions. fields lists the body fields of all routes; a condition on the body
// refers to its field by index.
func newConditions(r Route, fields []string) *conditions {
	if len(r.Methods)+len(r.Headers)+len(r.Cookies)+len(r.Query)+len(r.Body) == 0 {
		return nil
	}
	c := &conditions{
		methods: slices.Clone(r.Methods), headers: conditionsOf(r.Headers), cookies: conditionsOf(r.Cookies), query: conditionsOf(r.Query), body: conditionsOf(r.Body),
	}
	c.preflight = r.CORS != nil
	for i := range c.headers {
		c.headers[i].name = strings.ToLower(c.headers[i].name)
	}
	for i := range c.body {
		c.body[i].field = slices.Index(fields, c.body[i].name)
	}
	return c
}

// bodyFields returns the body fields that the routes look at.
func bodyFields(routes []Route) (fields []string) {
	add := func(name string) {
		if !slices.Contains(fields, name) {
			fields = append(fields, name)
		}
	}
	for _, r := range routes {
		if r.LLM != nil {
			add(modelField)
			if r.LLM.IncludeUsage {
				add(streamField)
				add(optionsField)
				add(usageField)
			}
		}
		for _, f := range r.Body {
			add(f.Name)
		}
		for _, text := range r.Groups {
			if g, err := identity.Parse(text); err == nil && g.Key != "" {
				add(g.Key)
			}
		}
	}
	return fields
}

func conditionsOf(fields []FieldMatch) (list []condition) {
	for _, f := range fields {
		c := condition{name: f.Name, value: f.Value, any: f.Value == AnyValue && f.Match == ValueExact, match: f.Match}
		if f.Match == ValueRegexp {
			c.expression, _ = CompileWhole(f.Value) // verifyFields reports the error
		}
		list = append(list, c)
	}
	return list
}

// count returns the number of conditions: all methods together count as one, each of the others separately.
func (c *conditions) count() int {
	if c == nil {
		return 0
	}
	return min(len(c.methods), 1) + len(c.headers) + len(c.cookies) + len(c.query) + len(c.body)
}

// holdIn reports whether a body meets the conditions on it.
func (c *conditions) holdIn(body *peek) bool {
	for i := range c.body {
		if !body.holds(&c.body[i]) {
			return false
		}
	}
	return true
}

// hold reports whether a request meets all conditions except those on its body.
func (c *conditions) hold(r *httpwire.Request) bool {
	if len(c.methods) > 0 && !slices.Contains(c.methods, view(r.Method)) && !(c.preflight && slices.Contains(c.methods, view(preflights(r)))) {
		return false
	}
	for i := range c.headers {
		if !c.headers[i].inHeader(r) {
			return false
		}
	}
	for i := range c.cookies {
		if !c.cookies[i].inCookies(r) {
			return false
		}
	}
	if len(c.query) == 0 {
		return true
	}
	_, query, _ := bytes.Cut(r.Target, []byte{'?'})
	for i := range c.query {
		if !c.query[i].inQuery(query) {
			return false
		}
	}
	return true
}

// inHeader reports whether a forwarded field meets the condition, whose name is in lower case.
func (c *condition) inHeader(r *httpwire.Request) bool {
	for i := range r.Fields {
		f := &r.Fields[i]
		if len(f.Name) == len(c.name) && httpwire.EqualFold(f.Name, c.name) && c.holds(view(f.Value)) && !r.Listed(f) {
			return true
		}
	}
	return false
}

// inCookies reports whether a forwarded cookie meets the condition.
func (c *condition) inCookies(r *httpwire.Request) bool {
	for i := range r.Fields {
		f := &r.Fields[i]
		if !httpwire.EqualFold(f.Name, "cookie") || r.Listed(f) {
			continue
		}
		for tail := f.Value; len(tail) > 0; {
			var name, value []byte
			if name, value, tail = nextCookie(tail); view(name) == c.name && c.holds(view(value)) {
				return true
			}
		}
	}
	return false
}

// nextCookie returns the first cookie of a Cookie field's value, and the cookies behind it.
func nextCookie(list []byte) (name, value, tail []byte) {
	pair, tail, _ := bytes.Cut(list, []byte{';'})
	name, value, _ = bytes.Cut(pair, []byte{'='})
	return bytes.Trim(name, " \t"), bytes.TrimRight(value, " \t"), tail
}

// inQuery reports whether a parameter of the query meets the condition. Parameters are decoded as forms are
// (application/x-www-form-urlencoded); as in package net/url, ";" is no separator.
func (c *condition) inQuery(query []byte) bool {
	for len(query) > 0 {
		var parameter []byte
		parameter, query, _ = bytes.Cut(query, []byte{'&'})
		name, value, _ := bytes.Cut(parameter, []byte{'='})
		if equalForm(name, c.name) && c.holdsForm(value) {
			return true
		}
	}
	return false
}

// holdsForm is holds for form-encoded text. Badly encoded text meets only AnyValue.
func (c *condition) holdsForm(encoded []byte) bool {
	switch {
	case c.match == ValueExact:
		return c.any || equalForm(encoded, c.value)
	case bytes.IndexByte(encoded, '%') < 0 && bytes.IndexByte(encoded, '+') < 0:
		return c.holds(view(encoded))
	}
	plain, err := url.QueryUnescape(string(encoded))
	return err == nil && c.holds(plain)
}

// equalForm reports whether the form-encoded text equals plain. Badly encoded text equals nothing.
func equalForm(encoded []byte, plain string) bool {
	for ; len(encoded) > 0; encoded = encoded[1:] {
		c := encoded[0]
		switch c {
		case '+':
			c = ' '
		case '%':
			if len(encoded) < 3 {
				return false
			}
			high, low := httpwire.HexDigit(encoded[1]), httpwire.HexDigit(encoded[2])
			if high < 0 || low < 0 {
				return false
			}
			c, encoded = byte(high<<4|low), encoded[2:]
		}
		if plain == "" || plain[0] != c {
			return false
		}
		plain = plain[1:]
	}
	return plain == ""
}

// CompilePath compiles the expression of a route with PathRegexp so that it matches whole paths.
func CompilePath(expression string) (*regexp.Regexp, error) { return CompileWhole(expression) }

// CompileWhole compiles the expression of a FieldMatch with ValueRegexp so that it matches whole values.
func CompileWhole(expression string) (*regexp.Regexp, error) {
	if len(expression) > maxRegexp {
		return nil, fmt.Errorf("longer than %d bytes", maxRegexp)
	}
	if _, err := regexp.Compile(expression); err != nil { // checked without the parentheses, in which "a)|(b" would be valid
		return nil, err
	}
	return regexp.Compile(`\A(?s:` + expression + `)\z`) // so that `.*` also matches line breaks
}

// expression returns the compiled Path of a route with PathRegexp; nil = the route has another PathMatch, or Path is no
// expression.
func (r Route) expression() *regexp.Regexp {
	if r.PathMatch != PathRegexp {
		return nil
	}
	e, _ := CompilePath(r.Path) // verifyMatch reports the error
	return e
}

// verifyMatch checks the path and the conditions.
func (r Route) verifyMatch() error {
	switch {
	case r.PathMatch < PathPrefix || r.PathMatch > PathRegexp:
		return errors.New("unknown PathMatch")
	case r.PathMatch != PathPrefix && r.StripPrefix:
		return errors.New("only a path that is a prefix can be stripped")
	case r.PathMatch == PathRegexp:
		if _, err := CompilePath(r.Path); err != nil {
			return fmt.Errorf("the path: %w", err)
		}
	case r.Path != "" && r.Path[0] != '/', r.Path == "" && r.PathMatch == PathExact:
		return errors.New("the path does not begin with /")
	case httpwire.HasDotSegment(r.Path):
		return errors.New("the path has a . or .. segment")
	}
	for _, m := range r.Methods {
		if !httpwire.ValidToken(m) {
			return fmt.Errorf("the method %q is not a token", m)
		}
	}
	for _, f := range r.Headers {
		switch {
		case !httpwire.ValidToken(f.Name):
			return fmt.Errorf("the header %q is not a token", f.Name)
		case strings.EqualFold(f.Name, "host"):
			return errors.New("the header Host is what Route.Host is compared with")
		case f.Match != ValueRegexp && !httpwire.ValidValue(f.Value):
			return fmt.Errorf("the value of header %s cannot be one", f.Name)
		}
	}
	for _, f := range r.Cookies {
		if !httpwire.ValidToken(f.Name) {
			return fmt.Errorf("the cookie %.40q is not a token", f.Name)
		}
	}
	for _, f := range r.Body {
		if err := checkField(f.Name); err != nil {
			return err
		}
	}
	return errors.Join(r.verifyGroups(), verifyFields("header", r.Headers), verifyFields("cookie", r.Cookies), verifyFields("query", r.Query), verifyFields("body", r.Body), tooMany(len(r.Methods)))
}

func checkField(path string) error {
	if err := jsonfield.CheckPath(path); err != nil {
		return fmt.Errorf("the body's field %.40q: %w", path, err)
	}
	return nil
}

func verifyFields(kind string, fields []FieldMatch) error {
	for _, f := range fields {
		switch {
		case f.Match < ValueExact || f.Match > ValueRegexp:
			return fmt.Errorf("%s %.40q: unknown Match", kind, f.Name)
		case f.Match == ValueRegexp && len(f.Name) <= maxMatchBytes:
			if _, err := CompileWhole(f.Value); err != nil {
				return fmt.Errorf("%s %.40q: %w", kind, f.Name, err)
			}
		case f.Match != ValueExact && f.Value == "":
			return fmt.Errorf("%s %.40q: a Value is missing", kind, f.Name)
		case len(f.Value) > maxMatchBytes:
			return fmt.Errorf("%s %.40q: a name has 1 to %d bytes, a value at most as many", kind, f.Name, maxMatchBytes)
		}
		if f.Name == "" || len(f.Name) > maxMatchBytes {
			return fmt.Errorf("%s %.40q: a name has 1 to %d bytes, a value at most as many", kind, f.Name, maxMatchBytes)
		}
	}
	return tooMany(len(fields))
}

func tooMany(n int) error {
	if n > maxConditions {
		return fmt.Errorf("%d conditions; at most %d of a kind are possible", n, maxConditions)
	}
	return nil
}

// key identifies a route: of two routes with the same key only one can be reached, unless they have Groups.
func (r Route) key() string {
	sorted := func(fields []FieldMatch, name func(string) string) []string {
		var all []string
		for _, f := range fields {
			all = append(all, fmt.Sprintf("%q=%d%q", name(f.Name), f.Match, f.Value))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	path := r.Path
	if r.PathMatch == PathPrefix {
		path = canonicalPath(path)
	}
	methods := slices.Sorted(slices.Values(r.Methods))
	return fmt.Sprintf("%t %q %d %q %q %q %q %q %q", len(r.Groups) > 0, canonicalHost(r.Host), r.PathMatch, path, slices.Compact(methods),
		sorted(r.Headers, strings.ToLower), sorted(r.Cookies, strings.Clone), sorted(r.Query, strings.Clone), sorted(r.Body, strings.Clone))
}
