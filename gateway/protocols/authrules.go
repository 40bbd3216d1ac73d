package protocols

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/pgproxy/hba"
)

// AuthRule is a line of pg_hba.conf. Each text has the syntax of its field there: names in double quotes are no keywords.
type AuthRule struct {
	Type       AuthType   `conf:"type" required:"true"`
	Database   []string   `conf:"database" required:"true" single:"true" maxlen:"100"` // all, sameuser, samerole, replication, names, /regular expressions
	User       []string   `conf:"user" required:"true" single:"true" maxlen:"100"`     // all, names, +roles, /regular expressions
	Address    string     `conf:"address"`                                             // all, samehost, samenet, address/bits; none for local
	Method     AuthMethod `conf:"method" required:"true"`
	Map        string     `conf:"map"`        // of AuthMaps, for cert and peer; empty: the names are equal
	ClientCert string     `conf:"clientcert"` // verify-ca, verify-full: what the client's certificate has to be
	ClientName string     `conf:"clientname"` // CN, DN: the name in the certificate; empty: CN
}

// AuthType is the kind of connections of a rule.
type AuthType string

// Values implements config.Enum.
func (AuthType) Values() []string { return []string{"local", "host", "hostssl", "hostnossl"} }

// AuthMethod is how the clients of a rule authenticate.
type AuthMethod string

// Values implements config.Enum.
func (AuthMethod) Values() []string { return hba.Methods() }

// AuthMap is a line of pg_ident.conf: it lets the holder of another system's name log in as a user.
type AuthMap struct {
	Map        string `conf:"map" required:"true"`
	SystemUser string `conf:"system_user" required:"true"` // or /regular expression
	User       string `conf:"user" required:"true"`        // with \1 for a part of the system's name; or all, or /regular expression
}

// rule returns a rule of a list.
func (r *AuthRule) rule(i int) (hba.Rule, error) {
	return hba.Line{
		Type: string(r.Type), Database: r.Database, User: r.User, Address: r.Address, Method: string(r.Method), Map: r.Map, ClientCert: r.ClientCert, ClientName: r.ClientName,
	}.Rule(fmt.Sprintf("rule %d of auth_rules", i+1))
}

// hasRules reports whether a listener has rules for authentication.
func (pg *PostgresListener) hasRules() bool { return len(pg.AuthRules) > 0 || pg.AuthHBAFile != "" }

// loadRules returns a listener's rules and maps, none if it has none.
func loadRules(pg *PostgresListener) (rules hba.Rules, maps hba.Maps, err error) {
	if pg.AuthHBAFile != "" {
		if rules, err = readRules(pg.AuthHBAFile); err != nil {
			return nil, nil, fmt.Errorf("auth_hba_file: %w", err)
		}
	}
	for i := range pg.AuthRules {
		r, err := pg.AuthRules[i].rule(i)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", r.Where, err)
		}
		rules = append(rules, r)
	}
	if pg.AuthIdentFile != "" {
		if maps, err = readMaps(pg.AuthIdentFile); err != nil {
			return nil, nil, fmt.Errorf("auth_ident_file: %w", err)
		}
	}
	for i, m := range pg.AuthMaps {
		line, err := hba.MapLine(m).Mapping()
		if err != nil {
			return nil, nil, fmt.Errorf("auth_maps: line %d: %w", i+1, err)
		}
		maps = append(maps, line)
	}
	return rules, maps, nil
}

func readRules(path config.Path) (hba.Rules, error) {
	text, err := path.Read()
	if err != nil {
		return nil, err
	}
	return hba.Parse(string(path), string(text), readNames)
}

// readNames reads a list of users or databases that a pg_hba.conf refers to.
func readNames(path string) ([]byte, error) { return config.Path(path).Read() }

// filesOf lists the files that a pg_hba.conf refers to, also those that cannot be read.
func filesOf(hbaFile config.Path, read func(config.Path) ([]byte, error)) (files []config.Path) {
	if hbaFile == "" {
		return nil
	}
	text, err := read(hbaFile)
	if err != nil {
		return nil // whoever reads the rules reports it
	}
	_, _ = hba.Parse(string(hbaFile), string(text), func(path string) ([]byte, error) {
		files = append(files, config.Path(path))
		return read(config.Path(path))
	})
	return files
}

func readMaps(path config.Path) (hba.Maps, error) {
	text, err := path.Read()
	if err != nil {
		return nil, err
	}
	return hba.ParseMaps(string(path), string(text))
}

// checkRules reports problems of rules and maps, each at its place.
func checkRules(c *config.Checker, l *config.Listener, pg *PostgresListener) {
	switch {
	case len(pg.AuthRules) > 0 && pg.AuthHBAFile != "":
		c.Report(c.Mark(&pg.AuthHBAFile), "auth_hba_file: the rules are in \"auth_rules\" already; remove one of them")
	case len(pg.AuthMaps) > 0 && pg.AuthIdentFile != "":
		c.Report(c.Mark(&pg.AuthIdentFile), "auth_ident_file: the maps are in \"auth_maps\" already; remove one of them")
	case pg.hasRules() && pg.Auth != AuthRules:
		c.Report(c.Mark(&pg.Auth), "auth: the rules say how clients authenticate; remove auth: %s, or \"auth_rules\" and \"auth_hba_file\"", pg.Auth)
	case !pg.hasRules() && pg.Auth == AuthRules:
		c.Report(c.Mark(&pg.Auth), "auth: rules needs \"auth_rules\" or \"auth_hba_file\"")
	case !pg.hasRules() && (len(pg.AuthMaps) > 0 || pg.AuthIdentFile != ""):
		c.Report(c.Mark(&pg.AuthMaps, &pg.AuthIdentFile), "there are maps of names, and no rules that could refer to them: see \"auth_rules\"")
	}
	rules := rulesToCheck(c, pg)
	maps, known := mapsToCheck(c, pg)
	reported := map[string]bool{} // once for all lines of a file
	for i := range rules {
		r := &rules[i]
		pos := c.Mark(&pg.AuthHBAFile)
		if pg.AuthHBAFile == "" {
			pos = c.Mark(&pg.AuthRules[i])
		}
		for _, why := range ruleProblems(l, pg, r, maps, known) {
			if !reported[why.Error()] {
				c.Report(pos, "%s: %s", r.Where, why)
			}
			reported[why.Error()] = pg.AuthHBAFile != ""
		}
	}
	warnOfRules(c, l, pg, rules)
}

// warnOfRules warns of rules that are probably mistakes.
func warnOfRules(c *config.Checker, l *config.Listener, pg *PostgresListener, rules hba.Rules) {
	needsTLS := slices.IndexFunc(rules, func(r hba.Rule) bool { return r.NeedsTLS() })
	if needsTLS >= 0 && l.TLS == nil && !strings.HasPrefix(l.Listen, "unix:") {
		c.Warn(c.Mark(&pg.AuthRules, &pg.AuthHBAFile), "%s: hostssl matches no client, because the listener has no \"tls\"", rules[needsTLS].Where)
	}
	exposes := slices.IndexFunc(rules, func(r hba.Rule) bool { return r.ExposesPasswords() })
	if exposes >= 0 && !pg.RequireTLS && !config.Loopback(l.Listen) {
		c.Warn(c.Mark(&pg.AuthRules, &pg.AuthHBAFile), "%s: clients without TLS send their passwords in clear text; write type hostssl, or method scram-sha-256", rules[exposes].Where)
	}
}

// rulesToCheck returns the rules if all of them are valid. Invalid ones are reported, each in its line.
func rulesToCheck(c *config.Checker, pg *PostgresListener) (rules hba.Rules) {
	if pg.AuthHBAFile != "" && c.NoProblemAt(&pg.AuthHBAFile) {
		rules, err := readRules(pg.AuthHBAFile)
		reportLines(c, &pg.AuthHBAFile, "auth_hba_file", err)
		return rules
	}
	valid := true
	for i := range pg.AuthRules {
		line := &pg.AuthRules[i]
		if !c.NoProblemAt(&line.Type, &line.Database, &line.User, &line.Method) || line.Type == "" || len(line.Database) == 0 || len(line.User) == 0 || line.Method == "" {
			valid = false
			continue
		}
		r, err := line.rule(i)
		if err != nil {
			c.Report(c.Mark(&pg.AuthRules[i]), "%s: %s", r.Where, err)
		}
		rules, valid = append(rules, r), valid && err == nil
	}
	if !valid {
		return nil
	}
	return rules
}

// mapsToCheck returns the maps, and whether all of them are valid. Invalid ones are reported.
func mapsToCheck(c *config.Checker, pg *PostgresListener) (maps hba.Maps, valid bool) {
	if pg.AuthIdentFile != "" {
		if !c.NoProblemAt(&pg.AuthIdentFile) {
			return nil, false
		}
		maps, err := readMaps(pg.AuthIdentFile)
		reportLines(c, &pg.AuthIdentFile, "auth_ident_file", err)
		return maps, err == nil
	}
	valid = true
	for i := range pg.AuthMaps {
		m, err := hba.MapLine(pg.AuthMaps[i]).Mapping()
		if err != nil {
			c.Report(c.Mark(&pg.AuthMaps[i]), "auth_maps: %s", err)
		}
		maps, valid = append(maps, m), valid && err == nil
	}
	return maps, valid
}

// reportLines reports the problems of a file that a key names.
func reportLines(c *config.Checker, at *config.Path, key string, err error) {
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		c.Report(c.Mark(at), "%s: %s", key, strings.TrimSuffix(line, "\n"))
	}
}

// ruleProblems returns why a rule cannot work in its listener.
func ruleProblems(l *config.Listener, pg *PostgresListener, r *hba.Rule, maps hba.Maps, mapsKnown bool) (why []error) {
	if r.Method == hba.Peer && runtime.GOOS != "linux" {
		why = append(why, fmt.Errorf("method peer is not supported on %s", runtime.GOOS))
	}
	if r.ClientCert != hba.AnyCert && l.TLS != nil && l.TLS.ClientCA == "" {
		why = append(why, errors.New("it needs certificates of clients; give \"tls\" of the listener \"client_ca\", and client_auth: request if other clients have none"))
	}
	if r.AsksMembers() && pg.AuthUpstream == "" {
		why = append(why, errors.New("it asks who is a member of a role; name the upstream whose servers know that in \"auth_upstream\""))
	}
	if r.Map != "" && mapsKnown && !maps.Has(r.Map) {
		why = append(why, fmt.Errorf("there is no map %q; write it in \"auth_maps\", or name the file in \"auth_ident_file\"", config.Clip(r.Map)))
	}
	if pg.ChannelBinding == BindingRequire && (r.Method == hba.MD5 || r.Method == hba.Password) {
		why = append(why, fmt.Errorf("method %s has no channel binding (channel_binding: require)", r.Method))
	}
	if r.Method.AsksPassword() && pg.UsersFile == "" && pg.AuthQuery == "" {
		why = append(why, fmt.Errorf("method %s needs \"users_file\", lines of \"user\" \"secret\", or \"auth_query\"", r.Method))
	}
	return why
}
