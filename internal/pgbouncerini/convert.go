package pgbouncerini

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/yamltext"
	"github.com/headpond/headpond/pgproxy"
)

// Options say how a configuration is converted.
type Options struct {
	// Port replaces listen_port, so that both programs can run side by side; 0: it does not.
	Port int
	// Passwords is the directory of the files for Result.Passwords; "": the passwords come from the environment.
	Passwords string
	// Dir is the directory at which relative names of files start, the working directory of PgBouncer. Names that
	// are not there start beside the configuration.
	Dir string
	// Read reads auth_file.
	Read func(path string) ([]byte, error)
	// Exists reports whether there is a file.
	Exists func(path string) bool
}

// Result is a configuration of the gateway.
type Result struct {
	YAML      []byte
	Reports   []Report // in the order of the file
	Passwords []Password
	Settings  int // that the file has
}

// Report is about a setting whose equal the gateway has not.
type Report struct {
	Position
	Key  string // with the name of the database, user or peer before it
	Fate Fate   // not Carried
	Text string // what it did, and what to do
	seq  int    // by the order of the file
}

// String returns the line that `headpond import` prints.
func (r Report) String() string {
	return fmt.Sprintf("%s: %s: %s: %s", r.Position, r.Key, r.Fate, strings.ReplaceAll(r.Text, "`", `"`))
}

// Password is a secret of the configuration that YAML only refers to.
type Password struct {
	Of       string // what it is for, as `user "app" of database "shop"`
	File     string // with Options.Passwords
	Variable string // without
	Value    string // "": it is not known, as only a hash of it is in auth_file
}

// Count returns the number of reports with a fate.
func (r *Result) Count(f Fate) (n int) {
	for _, report := range r.Reports {
		if report.Fate == f {
			n++
		}
	}
	return n
}

// converter makes a Result.
type converter struct {
	opt       Options
	file      *File
	set       map[string]value // of section [pgbouncer]
	databases []*database
	users     []named
	peers     []named
	secrets   pgproxy.Users // of auth_file
	mode      string
	names     map[string]bool  // of upstreams, and variables
	places    map[Position]int // of lines, in the order in which the files are read
	reports   []Report
	reported  map[Report]bool
	passwords []Password
	out       yamltext.Mapping
}

// named is a line of section [users] or [peers].
type named struct {
	*Entry
	set map[string]value
}

// Convert makes a configuration of the gateway. The error is Problems: what PgBouncer would refuse.
func Convert(file *File, opt Options) (*Result, error) {
	c := &converter{opt: opt, file: file, names: map[string]bool{}, places: map[Position]int{}, reported: map[Report]bool{}}
	for i, e := range file.Entries {
		c.places[e.Position] = i
	}
	if err := c.load(); err != nil {
		return nil, err
	}
	c.readUsers()
	c.mode = c.poolMode()
	c.note("From %s by `headpond import`. Comments say where a value comes from.", filepath.Base(file.Path))
	c.out.Note("admin: 127.0.0.1:9090 # for headpond ctl, metrics and a dashboard; PgBouncer has no such page")
	if c.set["verbose"].on() {
		c.out.In("log").Put("level", "debug", "verbose")
	}
	listeners := &yamltext.Mapping{}
	upstreams := &yamltext.Mapping{}
	targets := c.addUpstreams(upstreams)
	c.addListeners(listeners, targets, c.authentication(upstreams))
	c.out.Fields = append(c.out.Fields, listeners.Fields...)
	c.out.Fields = append(c.out.Fields, yamltext.Field{Key: "upstreams", Sub: upstreams})
	c.reportOthers()
	slices.SortStableFunc(c.reports, func(a, b Report) int { return cmp.Compare(a.seq, b.seq) })
	return &Result{YAML: []byte(c.out.Render(anchor)), Reports: c.reports, Passwords: c.passwords, Settings: len(file.Entries) + len(file.Lost)}, nil
}

func (c *converter) note(format string, args ...any) {
	c.out.Note("%s", strings.ReplaceAll(fmt.Sprintf(format, args...), "`", `"`))
}

// load checks the settings of the file.
func (c *converter) load() error {
	var problems Problems
	bySection := map[string][]Entry{}
	for _, e := range c.file.Entries {
		bySection[e.Section] = append(bySection[e.Section], e)
	}
	if len(bySection[mainSection]) == 0 {
		problems = append(problems, Problem{Position{File: c.file.Path}, "there is no section [pgbouncer] with settings; is this a configuration of PgBouncer?"})
	}
	c.set = checked(&problems, mainKeys, bySection[mainSection])
	for _, line := range lines(&problems, databaseKeys, bySection["databases"]) {
		if line.Key == "pgbouncer" {
			problems = append(problems, Problem{line.Position, "the database \"pgbouncer\" is the console; no entry can have this name"})
		}
		c.databases = append(c.databases, &database{named: line, c: c})
	}
	c.users = lines(&problems, userKeys, bySection["users"])
	c.peers = lines(&problems, peerKeys, bySection["peers"])
	for _, p := range c.peers {
		if p.set["host"].text == "" {
			problems = append(problems, Problem{p.Position, "peer " + clip(p.Key) + ": \"host\" is missing"})
		}
	}
	if len(c.databases) == 0 {
		problems = append(problems, Problem{Position{File: c.file.Path}, "section [databases] has no line that is not a comment, so there is nothing to forward to"})
	}
	if dir := c.set["unix_socket_dir"].text; len(c.set["listen_addr"].list()) == 0 && (dir == "" || dir[0] == '@') {
		problems = append(problems, Problem{Position{File: c.file.Path}, "there is nowhere to listen: listen_addr is empty, and unix_socket_dir is no directory"})
	}
	if mode := c.set["client_tls_sslmode"]; !strings.EqualFold(mode.text, "disable") && mode.written() && (c.set["client_tls_cert_file"].text == "" || c.set["client_tls_key_file"].text == "") {
		problems = append(problems, Problem{mode.at.Position, "client_tls_sslmode: needs client_tls_cert_file and client_tls_key_file"})
	}
	if kind := c.set["auth_type"]; strings.EqualFold(kind.text, "hba") && c.set["auth_hba_file"].text == "" {
		problems = append(problems, Problem{kind.at.Position, "auth_type: hba needs auth_hba_file"})
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// lines checks the lines of a section whose values are connection strings. The last line of a name counts.
func lines(problems *Problems, keys []key, entries []Entry) (list []named) {
	places := map[string]int{}
	for i := range entries {
		e := &entries[i]
		found, err := pairs(e.Value)
		if err != nil {
			*problems = append(*problems, Problem{e.Position, fmt.Sprintf("%s: %v", clip(e.Key), err)})
			continue
		}
		var settings []Entry
		for _, p := range found {
			settings = append(settings, Entry{e.Position, e.Section, p.key, p.value})
		}
		line := named{e, checked(problems, keys, settings)}
		if before, ok := places[e.Key]; ok {
			list[before] = line
			continue
		}
		places[e.Key], list = len(list), append(list, line)
	}
	return list
}

// report adds a report about a setting; at is nil for a default.
func (c *converter) report(at *Entry, key string, fate Fate, format string, args ...any) {
	r := Report{Position: Position{File: c.file.Path}, Key: key, Fate: fate, Text: fmt.Sprintf(format, args...), seq: -1}
	if at != nil {
		r.Position = at.Position
		r.seq = c.places[at.Position]
	}
	if !c.reported[r] { // many databases may have the same
		c.reported[r] = true
		c.reports = append(c.reports, r)
	}
}

// reportOf reports a setting of section [pgbouncer] that has been written.
func (c *converter) reportOf(name string, fate Fate, format string, args ...any) {
	if v := c.set[name]; v.written() {
		c.report(v.at, name, fate, format, args...)
	}
}

// reportOthers reports the settings that the gateway has no equal of, whatever their value.
func (c *converter) reportOthers() {
	for _, e := range c.file.Lost {
		c.reports = append(c.reports, Report{Position: e.Position, Key: e.Key, Fate: Ignored, seq: -1,
			Text: "PgBouncer ignores it too: a second section [pgbouncer] below begins with the defaults again"})
	}
	reportAll := func(prefix string, keys []key, set map[string]value) {
		for _, k := range keys {
			v := set[k.name]
			off := same(v.text, k.def) || strings.HasPrefix(k.def, "-") && v.text == "0" // no limit
			if v.written() && k.fate != Carried && !(off && k.fate >= Differs) {
				c.report(v.at, prefix+k.name, k.fate, "%s", k.advice(v, prefix))
			}
		}
	}
	reportAll("", mainKeys, c.set)
	c.reportTLS()
	c.reportAuth()
	for _, d := range c.databases {
		reportAll(d.Key+": ", databaseKeys, d.set)
	}
	for _, u := range c.users {
		reportAll(u.Key+": ", userKeys, u.set)
		if mode := strings.ToLower(u.set["pool_mode"].text); mode != "" && mode != c.mode {
			c.report(u.Entry, u.Key+": pool_mode", Missing, "the mode of all clients of a listener is %s; give this user a listener of its own, on another port, with `mode: %s`", c.mode, mode)
		}
	}
	for _, p := range c.peers {
		if host := p.set["host"].text; strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || isLoopback(host) {
			c.report(p.Entry, p.Key, Itself, "one process uses all cores: one gateway replaces the peers of this machine")
		} else {
			c.report(p.Entry, p.Key, Missing, "a cancel request must reach the gateway of its client: let the balancer in front send all connections of an address to one of them")
		}
	}
}

// advice is the note of a key with the values of a line in place of its ROLE and N, so that its statements can be run.
func (k *key) advice(v value, prefix string) string {
	role := strings.TrimSuffix(prefix, ": ")
	switch {
	case role == "":
		role = "ROLE"
	case !plainRole.MatchString(role):
		role = `"` + strings.ReplaceAll(role, `"`, `""`) + `"`
	}
	return strings.NewReplacer("ALTER ROLE ROLE", "ALTER ROLE "+role, "LIMIT N", "LIMIT "+v.text, "'Ns'", "'"+v.text+"s'", " Ns}", " "+v.text+"s}").Replace(k.note)
}

// plainRole matches names that SQL needs no quotes for.
var plainRole = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// readUsers reads auth_file, for passwords that belong to upstreams. A file that cannot be read is a matter of the check
// of the result.
func (c *converter) readUsers() {
	if path := c.set["auth_file"].text; path != "" {
		if data, err := c.opt.Read(c.path(path)); err == nil {
			c.secrets, _ = pgproxy.ParseUsers(bytes.NewReader(data))
		}
	}
}

// path returns the absolute name of a file.
func (c *converter) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	path := filepath.Join(c.opt.Dir, name)
	ini := c.file.Path
	if !filepath.IsAbs(ini) {
		ini = filepath.Join(c.opt.Dir, ini)
	}
	if beside := filepath.Join(filepath.Dir(ini), name); !c.opt.Exists(path) && c.opt.Exists(beside) {
		return beside
	}
	return path
}

// poolMode is the mode of the listeners: that of all databases, or else the global one.
func (c *converter) poolMode() string {
	global := strings.ToLower(c.set["pool_mode"].text)
	mode := c.databases[0].mode()
	for _, d := range c.databases {
		if d.mode() == global {
			mode = global
		}
	}
	for _, d := range c.databases {
		if d.mode() != mode {
			at := cmp.Or(d.set["pool_mode"].at, c.set["pool_mode"].at)
			c.report(at, d.Key+": pool_mode", Missing, "it is %s for this database, and %s for all of the listener here: for %s give the database a listener of its own, on another port, with `mode: %s`",
				d.mode(), mode, d.mode(), d.mode())
		}
	}
	return mode
}

// origin is the comment at a value: the setting that it comes from.
func origin(name string, v value) string {
	if v.written() {
		return name
	}
	return name + ", PgBouncer's default"
}

// duration returns a time of the gateway; 0 is never, if the gateway has that. Values out of range are reported.
func (c *converter) duration(v value, name string, atLeast, atMost time.Duration, never bool) string {
	d := v.seconds()
	if d == 0 && never {
		return "never"
	}
	if bound := min(max(d, atLeast), atMost); bound != d {
		c.report(v.at, name, Differs, "it is %s, from a range of %s to %s", yamltext.Short(bound), yamltext.Short(atLeast), yamltext.Short(atMost))
		d = bound
	}
	return yamltext.Short(d.Round(time.Millisecond))
}

// upstreamName returns a name for an upstream that no other one has.
func (c *converter) upstreamName(wish string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, wish)
	if name = strings.TrimLeft(name[:min(len(name), 56)], ".-"); name == "" { // it is the name of a file, too
		name = "db"
	}
	unique := name
	for n := 2; c.names[unique]; n++ {
		unique = name + "-" + strconv.Itoa(n)
	}
	c.names[unique] = true
	return unique
}

// secret returns the value of a password in the configuration, which refers to a file or a variable.
func (c *converter) secret(upstream, of, password string) string {
	p := Password{Of: of, Value: password}
	if c.opt.Passwords != "" {
		p.File = filepath.Join(c.opt.Passwords, upstream)
		c.passwords = append(c.passwords, p)
		return yamltext.Quote("file:" + p.File)
	}
	p.Variable = "HEADPOND_PASSWORD_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(upstream))
	base := p.Variable
	for n := 2; c.names[p.Variable]; n++ {
		p.Variable = base + "_" + strconv.Itoa(n)
	}
	c.names[p.Variable] = true
	c.passwords = append(c.passwords, p)
	return strconv.Quote("${" + p.Variable + "}")
}

func isLoopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// anchor gives equal mappings of these keys an anchor of YAML.
func anchor(key string, sub *yamltext.Mapping) string {
	if key == "postgres" && len(sub.Fields) > 0 && sub.Fields[0].Key != "mode" {
		return "login" // of an upstream
	}
	return map[string]string{"postgres": "clients", "pool": "pool", "params": "params"}[key]
}
