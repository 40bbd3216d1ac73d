package hba_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy/hba"
)

// TestPatterns has what version 15 of PostgreSQL does not know yet.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"/^u[0-9]+$", "u12", true}, {"/^u[0-9]+$", "u12x", false}, {"/^u[0-9]+$", "u12\n", false}, {"/u1", "xu12", true}, {"/", "anything", true},
		{`/^a.b$`, "a\nb", true}, {`"/^a, b$"`, "a, b", true}, {`/^a|b$`, "ax", true}, {`/(?i)^ADA$`, "ada", true}, {`/^\d+$`, "12", true}, {`/^a\.b$`, "axb", false},
	} {
		for _, field := range []string{"database", "user"} {
			line := hba.Line{Type: "local", Database: []string{"all"}, User: []string{"all"}, Method: "trust"}
			req := hba.Request{Local: true, Database: "d", User: "u"}
			if field == "user" {
				line.User, req.User = []string{c.pattern}, c.name
			} else {
				line.Database, req.Database = []string{c.pattern}, c.name
			}
			r, err := line.Rule("here")
			if err != nil {
				t.Fatal(err)
			}
			if got := (hba.Rules{r}).Find(&req) != nil; got != c.want {
				t.Errorf("%s %s, %q: %v", field, c.pattern, c.name, got)
			}
		}
	}
	for pattern, want := range map[string]string{
		"/(": "missing closing )", `/(a)\1`: `\1 is not supported`, `/\mada`: `\m is not supported`, `/\bada`: `\b is not supported`, "/a*?": "prefers less",
		"/(a|b+?)": "prefers less", "/(?=a)": "invalid or unsupported Perl syntax", `/\Qa`: `\Q is not supported`, "/a{2000}": "invalid repeat count",
	} {
		if _, err := (hba.Line{Type: "local", Database: []string{"all"}, User: []string{pattern}, Method: "trust"}).Rule("here"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", pattern, err, want)
		}
	}
}

// TestMembers checks that rules for members ask who is one, and others do not.
func TestMembers(t *testing.T) {
	rules, err := hba.Parse("f", "local \"samerole\" \"+ops\" trust\nlocal all +ops trust\nlocal samerole web trust\nlocal samegroup old trust\nlocal all + trust", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, asks := range []bool{false, true, true, true, true} {
		if rules[i].AsksMembers() != asks {
			t.Errorf("%s asks who is a member: %v", rules[i].Where, !asks)
		}
	}
	if !rules.AskMembers() || rules[:1].AskMembers() {
		t.Error("AskMembers")
	}
	for _, c := range []struct{ user, database, role, want string }{
		{"ada", "shop", "ops", "f:2"}, {"ada", "shop", "shop", ""}, {"web", "shop", "shop", "f:3"}, {"old", "shop", "shop", "f:4"}, {"web", "samerole", "web", ""}, {"+ops", "samerole", "", "f:1"},
	} {
		req := hba.Request{Local: true, User: c.user, Database: c.database, Member: func(role string) bool { return role == c.role }}
		got := ""
		if r := rules.Find(&req); r != nil {
			got = r.Where
		}
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		req.Member = nil
		if r := rules.Find(&req); r != nil && r.AsksMembers() {
			t.Errorf("%+v: %s without anybody to ask", c, r.Where)
		}
	}
}

// TestListsInFiles checks where names are read.
func TestListsInFiles(t *testing.T) {
	files := map[string]string{
		"/etc/pg/users": "ada, \"bob b\"\n# nobody\n@more/ops eve\n\"@users\"\n", "/etc/pg/more/ops": "+ops\n@/abs", "/abs": "all2\n", "/etc/pg/empty": "\n#\n", "/etc/pg/loop": "x @loop\n", "/etc/pg/bad": "a\n\"b\n",
	}
	read := func(path string) ([]byte, error) {
		text, ok := files[path]
		if !ok {
			return nil, fmt.Errorf("cannot read %s", path)
		}
		return []byte(text), nil
	}
	rules, err := hba.Parse("/etc/pg/hba", "local all @users trust", read)
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]bool{"ada": true, "bob b": true, "eve": true, "@users": true, "all2": true, "member": true, "users": false, "@more/ops": false, "nobody": false} {
		req := hba.Request{Local: true, User: user, Member: func(role string) bool { return role == "ops" && user == "member" }}
		if (rules.Find(&req) != nil) != want {
			t.Errorf("%s: %v", user, !want)
		}
	}
	for line, want := range map[string]string{
		"local all @none trust": `f:1: "@none": cannot read /etc/pg/none`, "local @empty all trust": `"@empty": there are no names in the file`, "local all @loop trust": "more than 10 files name each other",
		"local all @bad trust": "/etc/pg/bad:2: a quoted name has no end",
	} {
		if _, err := hba.Parse("/etc/pg/f", line, read); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// TestProblems checks that each problem has its place and says what to do.
func TestProblems(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "f has no rules",
		"# only\n\n":                     "f has no rules",
		"local all all\n":                "f:1: the line ends before the method",
		"\n\nlocal all all \\\n\\\nx":    `f:3: unknown method "x"; want one of scram-sha-256, md5`,
		"host all all example.com md5":   `f:1: address "example.com": want all, samehost, samenet or an IP address with a mask; names of hosts are not supported`,
		"host all all 10.0.0.1 md5":      `f:1: mask "md5"`,
		"host all all 10.0.0.1":          "f:1: address 10.0.0.1 needs a mask: write /32",
		"host all all fe80::1%lo/10 md5": `want an IP address, a slash`,
		"local @f all md5":               `f:1: database "@f": lists in other files are for pg_hba.conf`,
		"include other.conf":             "f:1: other files are not supported",
		"host all all all ldap":          `f:1: method "ldap" is not supported`,
		"host all all all ident":         `f:1: method "ident" is not supported`,
		"host all all all cert":          "f:1: method cert is for connections with TLS: type hostssl",
		"local all \"a md5":              "f:1: a quoted name has no end",
		"local all a\x00b md5":           "f:1: there is a NUL character",
		"local all " + strings.Repeat("a,", 40_000) + " md5": "f:1: the line is longer than 64 KiB",
		"x\nlocal all all md5\ny":                            "f:1: unknown type \"x\"; want local, host, hostssl or hostnossl\nf:3: unknown type",
		strings.Repeat("x\n", 1000):                          "f:100: unknown type",
		strings.Repeat("local all all md5\n", 100_001):       "f:100001: there are more than 100000 lines",
	} {
		_, err := hba.Parse("f", text, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "f:101:") {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"m a": "f:1: the line ends before the user", "m a b c": `f:1: "c": the line ends after the user`, "m a,b c": "there is more than one system's user name",
		`m /a \1`: `f:1: user "\\1": \1 stands for`, `m /^(a|ab)(.*)$ \1`: `begin with different characters; it is "/^(a|ab)(.*)$"`, `m /^([^@]*|adm.*)(@x)?$ \1`: "different characters",
		`m /(|a)b \1`: "different characters", `m /((ax|[a-c])x) \1`: "different characters", `m /(?i)(a|b|Ac) \1`: "different characters", "m a +b": "does not know who is a member", "m /( b": "missing closing )", "include f": "other files",
	} {
		if _, err := hba.ParseMaps("f", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestMaps(t *testing.T) {
	maps, err := hba.ParseMaps("f", `
m  ada        lovelace
m  root       all
m  dev        /^dev_
m  /^(\w+)@corp$   \1_app
m  /^(one|two|[0-9]+|(x|y)+)@corp$ \1
m  /^(a|ab)(.*)@other$  ab
"a map" "CN=Ada, O=x" ada
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, system, user string
		want               bool
	}{
		{"m", "ada", "lovelace", true}, {"m", "ada", "ada", false}, {"m", "root", "anybody", true}, {"m", "dev", "dev_x", true}, {"m", "dev", "x", false},
		{"m", "bob@corp", "bob_app", true}, {"m", "bob@corp", "all", false}, {"m", "bob@corp", "bob", false}, {"m", "all@corp", "all_app", true},
		{"m", "two@corp", "two", true}, {"m", "xy@corp", "xy", true}, {"m", "xz@corp", "xz", false}, {"m", "abc@other", "ab", true},
		{"a map", "CN=Ada, O=x", "ada", true}, {"other", "ada", "ada", false}, {"", "ada", "ada", true}, {"", "ada", "bob", false},
	} {
		if got := maps.Allow(c.name, c.system, c.user); got != c.want {
			t.Errorf("map %q, %s as %s: %v", c.name, c.system, c.user, got)
		}
	}
	if !maps.Has("a map") || maps.Has("other") {
		t.Error("Has")
	}
}

func TestSameNet(t *testing.T) {
	rules, err := hba.Parse("f", "host all h samehost trust\nhost all n samenet trust\nhost all a all trust", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user string
		addr netip.Addr
		want bool
	}{
		{"h", netip.MustParseAddr("127.0.0.1"), true}, {"h", netip.MustParseAddr("127.0.0.2"), false}, {"n", netip.MustParseAddr("127.0.0.2"), true},
		{"n", netip.MustParseAddr("239.255.255.1"), false}, {"h", netip.Addr{}, false}, {"n", netip.Addr{}, false}, {"a", netip.Addr{}, true},
	} {
		req := hba.Request{Addr: c.addr, User: c.user, Database: "d"}
		if got := rules.Find(&req) != nil; got != c.want {
			t.Errorf("%s, %v: %v", c.user, c.addr, got)
		}
		if n := testing.AllocsPerRun(10, func() { rules.Find(&req) }); n > 0 && c.user == "a" {
			t.Errorf("a decision allocates %v times", n)
		}
	}
}

func TestNamesDatabase(t *testing.T) {
	for databases, want := range map[string]bool{"pgbouncer": true, `a,"pgbouncer"`: true, "all": false, "/pgbouncer": false, "sameuser": false} {
		r, err := hba.Line{Type: "local", Database: []string{databases}, User: []string{"all"}, Method: "trust"}.Rule("")
		if err != nil || r.NamesDatabase("pgbouncer") != want {
			t.Errorf("%s: %v", databases, err)
		}
	}
}

func TestExposesPasswords(t *testing.T) {
	for line, want := range map[string]bool{
		"host all all all password": true, "hostnossl all all 10.0.0.0/8 password": true, "host all all samenet password": true, "host all all 127.0.0.1/7 password": true,
		"host all all ::1 ffff:: password": true, "hostssl all all all password": false, "local all all password": false, "host all all all md5": false,
		"host all all samehost password": false, "host all all 127.0.0.0/8 password": false, "host all all ::1/128 password": false, "hostgssenc all all all password": false,
	} {
		rules, err := hba.Parse("f", line, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := rules[0].ExposesPasswords(); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// FuzzParse checks that names in quotes are read as they are, that rules in parts are those of the file, and that no decision
// or map fails.
func FuzzParse(f *testing.F) {
	for _, line := range append(lines, strings.Split(decisions, "\n")...) {
		f.Add(line)
	}
	f.Add("m /^(a|ab)(c|bcd)?$ \\1x\n")
	f.Fuzz(func(t *testing.T, text string) {
		req := hba.Request{Local: true, Database: "a", User: "b"}
		if rules, err := hba.Parse("f", text, nil); err == nil {
			rules.Find(&req)
			req.Local, req.Addr = false, netip.MustParseAddr("::1")
			rules.Find(&req)
		}
		if maps, err := hba.ParseMaps("f", text); err == nil {
			for _, m := range maps {
				maps.Allow(m.Map, "abcd", "ab")
			}
		}
		fields, err := hba.Tokens(text)
		if err != nil || strings.Contains(text, "\n") {
			return
		}
		var quoted []string
		for _, field := range fields {
			var tokens []string
			for _, token := range field {
				tokens = append(tokens, `"`+strings.ReplaceAll(token, `"`, `""`)+`"`)
			}
			quoted = append(quoted, strings.Join(tokens, ","))
		}
		again, err := hba.Tokens(strings.Join(quoted, " "))
		if err == nil && !reflect.DeepEqual(fields, again) {
			t.Fatalf("%q is read as %q, and in quotes as %q", text, fields, again)
		}
		if len(fields) == 4 && fields[0][0] == "local" && len(fields[3]) == 1 && len(fields[0]) == 1 {
			_, err := hba.Parse("f", text, nil)
			_, inParts := hba.Line{Type: fields[0][0], Database: []string{quoted[1]}, User: []string{quoted[2]}, Method: quoted[3]}.Rule("")
			if err == nil && inParts != nil {
				t.Fatalf("%q is a rule, and in parts: %v", text, inParts)
			}
		}
	})
}
