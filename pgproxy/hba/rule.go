package hba

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Rule says how the clients authenticate that it matches: a line of pg_hba.conf. It is not changed once it is made.
type Rule struct {
	Method Method
	// Map is the map of names for Cert and Peer; "" means that the names have to be equal.
	Map string
	// ClientCert is what the client's certificate has to be, whatever the Method.
	ClientCert ClientCert
	// ByDN says that the name in a certificate is its distinguished name, not its common name.
	ByDN bool
	// Where is the rule's place, for messages, such as pg_hba.conf:12.
	Where string

	kind             kind
	databases, users []name
	address          address
}

// ClientCert is what the certificate of a client has to be.
type ClientCert uint8

// The values of ClientCert.
const (
	AnyCert    ClientCert = iota // there need be none
	VerifyCA                     // one of a trusted authority
	VerifyFull                   // one of a trusted authority, with the user's name
)

// kind is the kind of connection that a rule matches.
type kind uint8

const (
	local kind = iota
	host
	hostSSL
	hostNoSSL
	hostGSS // with GSSAPI's encryption: none that comes here
)

var kinds = map[string]kind{"local": local, "host": host, "hostssl": hostSSL, "hostnossl": hostNoSSL, "hostgssenc": hostGSS, "hostnogssenc": host}

// name is the name of a database or user in a rule.
type name struct {
	kind nameKind
	text string
	re   *regexp.Regexp
}

type nameKind uint8

const (
	exact       nameKind = iota
	anyName              // all
	sameUser             // sameuser: the database has the user's name
	replication          // replication: physical replication, of no database
	sameRole             // samerole: the user is a member of the role with the database's name
	member               // +role: the user is a member of that role
	pattern
)

// Request is a connection that asks to log in.
type Request struct {
	Local          bool // over a Unix socket
	TLS            bool
	Addr           netip.Addr // of the client, unmapped and without a zone; unless Local
	Database, User string
	Replication    bool // physical replication
	// Member reports whether User exists and is a member of a role, directly or by other roles, or is that role itself. It is
	// called for rules about members only (Rules.AskMembers), which match nobody if it is nil.
	Member func(role string) bool
}

// Rules are the rules of a file, or of a configuration. The first that matches counts.
type Rules []Rule

// Find returns the rule for a connection, nil if none matches. Then the connection has to be refused. It does not allocate,
// but for samehost and samenet from time to time.
func (r Rules) Find(req *Request) *Rule {
	for i := range r {
		if r[i].matches(req) {
			return &r[i]
		}
	}
	return nil
}

// AskMembers reports whether there are rules for the members of a role: +role, samerole or samegroup.
func (r Rules) AskMembers() bool {
	return slices.ContainsFunc(r, func(r Rule) bool { return r.AsksMembers() })
}

// AsksMembers reports whether a rule is for the members of a role.
func (r *Rule) AsksMembers() bool {
	asks := func(n name) bool { return n.kind == member || n.kind == sameRole }
	return slices.ContainsFunc(r.users, asks) || slices.ContainsFunc(r.databases, asks)
}

func (r *Rule) matches(req *Request) bool {
	if req.Local != (r.kind == local) || r.kind == hostGSS || r.kind == hostSSL && !req.TLS || r.kind == hostNoSSL && req.TLS {
		return false
	}
	if !req.Local && !r.address.matches(req.Addr) {
		return false
	}
	return slices.ContainsFunc(r.databases, func(n name) bool { return n.isDatabase(req) }) &&
		slices.ContainsFunc(r.users, func(n name) bool { return n.isUser(req) })
}

// isDatabase reports whether n is the database of a connection. Physical replication has none.
func (n *name) isDatabase(req *Request) bool {
	switch {
	case n.kind == replication || req.Replication:
		return n.kind == replication && req.Replication
	case n.kind == sameUser:
		return req.Database == req.User
	case n.kind == sameRole:
		return req.isMember(req.Database)
	}
	return n.is(req.Database)
}

// isUser reports whether n is the user of a connection.
func (n *name) isUser(req *Request) bool {
	if n.kind == member {
		return req.isMember(n.text)
	}
	return n.is(req.User)
}

func (req *Request) isMember(role string) bool { return req.Member != nil && req.Member(role) }

func (n *name) is(s string) bool {
	return n.kind == anyName || n.kind == exact && n.text == s || n.kind == pattern && n.re.MatchString(s)
}

// NamesDatabase reports whether a rule has the name of a database in it, not only "all" or a regular expression that matches it.
func (r *Rule) NamesDatabase(database string) bool {
	return slices.ContainsFunc(r.databases, func(n name) bool { return n.kind == exact && n.text == database })
}

// NeedsTLS reports whether a rule is for connections with TLS only.
func (r *Rule) NeedsTLS() bool { return r.kind == hostSSL }

// ExposesPasswords reports whether clients of other machines without TLS have to send their passwords in clear text.
func (r *Rule) ExposesPasswords() bool {
	return r.Method == Password && (r.kind == host || r.kind == hostNoSSL) && !r.address.isThisMachine()
}

// Line is a rule in parts, in the syntax of the fields of pg_hba.conf: names in double quotes are no keywords.
type Line struct {
	Type                   string   // local, host, hostssl, hostnossl
	Database, User         []string // with all, sameuser, samerole, replication, +role, /regular expression
	Address                string   // all, samehost, samenet, address/bits; "" for local
	Method                 string
	Map                    string // with cert or peer
	ClientCert, ClientName string // clientcert and clientname, "" = not given
}

// Rule returns the rule of a line. where is its place, for messages.
func (l Line) Rule(where string) (Rule, error) {
	r := Rule{Where: where}
	var fields []field
	for _, part := range []struct {
		name string
		text []string
	}{{"type", []string{l.Type}}, {"database", l.Database}, {"user", l.User}, {"address", []string{l.Address}}, {"method", []string{l.Method}}} {
		var whole field
		for _, text := range part.text {
			inText, err := fieldsOf(text)
			if err != nil {
				return r, fmt.Errorf("%s: %w", part.name, err)
			}
			if len(inText) > 1 && part.name != "address" {
				return r, fmt.Errorf("%s %q: write a name with spaces in double quotes", part.name, clip(text))
			}
			if part.name == "address" {
				fields = append(fields, inText...)
				continue
			}
			for _, f := range inText {
				whole = append(whole, f...)
			}
		}
		switch {
		case len(whole) > 0:
			fields = append(fields, whole)
		case part.name != "address":
			return r, fmt.Errorf("%s is missing", part.name)
		}
	}
	switch {
	case l.Type == "local" && l.Address != "":
		return r, errors.New("address: a rule of type local has none")
	case l.Type != "local" && l.Address == "":
		return r, errors.New("address is missing: all, samehost, samenet or one such as 10.0.0.0/8")
	}
	for _, option := range [][2]string{{"map", l.Map}, {"clientcert", l.ClientCert}, {"clientname", l.ClientName}} {
		if option[1] != "" {
			fields = append(fields, field{{text: option[0] + "=" + option[1]}})
		}
	}
	return ruleOf(fields, where)
}

// Read returns the text of a file.
type Read func(path string) ([]byte, error)

// Parse reads a pg_hba.conf. name begins the place of each rule and problem, name:line. The error joins all problems. read
// returns the lists of databases and users that lines refer to, as @file; relative paths are below name's directory. If it is
// nil, they are problems.
func Parse(name, text string, read Read) (rules Rules, err error) {
	err = eachLine(name, text, func(l line) error {
		fields, err := expand(l.fields, filepath.Dir(name), read)
		if err != nil {
			return err
		}
		r, err := ruleOf(fields, fmt.Sprintf("%s:%d", name, l.number))
		rules = append(rules, r)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case len(rules) == 0:
		return nil, fmt.Errorf("%s has no rules: nobody could log in", name)
	}
	return rules, nil
}

// ruleOf makes a rule of the fields of a line.
func ruleOf(fields []field, where string) (r Rule, err error) {
	r.Where = where
	t, fields, err := single(fields, "type")
	if err != nil {
		return r, err
	}
	var known bool
	if r.kind, known = kinds[t.text]; !known {
		if includes(t) {
			return r, errIncludes
		}
		return r, fmt.Errorf("unknown type %q; want local, host, hostssl or hostnossl", clip(t.text))
	}
	if r.databases, fields, err = namesOf(fields, "database", databaseWords); err != nil {
		return r, err
	}
	if r.users, fields, err = namesOf(fields, "user", userWords); err != nil {
		return r, err
	}
	if r.kind != local {
		if r.address, fields, err = addressOf(fields); err != nil {
			return r, err
		}
	}
	if t, fields, err = single(fields, "method"); err != nil {
		return r, err
	}
	if r.Method, err = methodOf(t.text, r.kind); err != nil {
		return r, err
	}
	if r.Method == Cert {
		r.ClientCert = VerifyFull
	}
	for _, f := range fields {
		for _, t := range f {
			if err := r.option(t.text); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

var (
	databaseWords = map[string]nameKind{"all": anyName, "sameuser": sameUser, "samerole": sameRole, "samegroup": sameRole, "replication": replication}
	userWords     = map[string]nameKind{"all": anyName}
)

// errIncludes is the problem of a line that names another file.
var errIncludes = errors.New("other files are not supported: write their lines here")

// includes reports whether a line that begins with a token names another file.
func includes(t token) bool {
	return !t.quoted && (t.text == "include" || t.text == "include_if_exists" || t.text == "include_dir" || strings.HasPrefix(t.text, "@"))
}

// namesOf takes a field of names off the front of a line.
func namesOf(fields []field, what string, keywords map[string]nameKind) (names []name, rest []field, err error) {
	if len(fields) == 0 {
		return nil, nil, fmt.Errorf("the line ends before the %s", what)
	}
	for _, t := range fields[0] {
		n := name{text: t.text}
		keyword, known := keywords[t.text]
		switch {
		case strings.HasPrefix(t.text, "/"):
			n.kind = pattern
			if n.re, err = patternOf(t.text[1:]); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", what, err)
			}
		case t.quoted:
		case known:
			n.kind = keyword
		case strings.HasPrefix(t.text, "+") && what == "user":
			n.kind, n.text = member, t.text[1:]
		case strings.HasPrefix(t.text, "@") && t.text != "@":
			return nil, nil, fmt.Errorf("%s %q: lists in other files are for pg_hba.conf; write the names here", what, clip(t.text))
		}
		names = append(names, n)
	}
	return names, fields[1:], nil
}

// option applies an option, name=value.
func (r *Rule) option(text string) error {
	key, value, ok := strings.Cut(text, "=")
	named := r.Method == Cert || r.Method == Peer
	switch {
	case !ok:
		return fmt.Errorf("option %q: want name=value", clip(text))
	case key == "map" && !named:
		return fmt.Errorf("map is for the methods cert and peer, not for %s", r.Method)
	case key == "map":
		r.Map = value
	case key == "clientcert" && r.kind != hostSSL, key == "clientname" && r.kind != hostSSL:
		return fmt.Errorf("%s is for connections with TLS: type hostssl", key)
	case key == "clientcert" && value == "verify-full":
		r.ClientCert = VerifyFull
	case key == "clientcert" && value == "verify-ca" && r.Method != Cert:
		r.ClientCert = VerifyCA
	case key == "clientcert":
		return fmt.Errorf("clientcert %q: want verify-ca, or verify-full, the only one for method cert", clip(value))
	case key == "clientname" && value == "DN":
		r.ByDN = true
	case key == "clientname" && value == "CN":
		r.ByDN = false
	case key == "clientname":
		return fmt.Errorf("clientname %q: want CN or DN", clip(value))
	default:
		return fmt.Errorf("unknown option %q; want map, clientcert or clientname", clip(key))
	}
	return nil
}
