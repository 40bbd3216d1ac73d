package acme_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/headpond/headpond/acme"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/repotest"
)

// problem is a file, and what is wrong with it; "" = nothing.
type problem struct{ section, listeners, want string }

const (
	web   = `{name: w, protocol: http, listen: "127.0.0.1:0", upstream: u, tls: {acme: a.test}}`
	good  = "{agree: true, storage: keys}"
	plain = `{name: p, protocol: http, listen: "127.0.0.1:0", upstream: u}`
)

// dnsProblems are about "dns" and wildcards.
var dnsProblems = []problem{
	{good, strings.ReplaceAll(web, "a.test", `"*.a.test"`), `acme: "*.a.test": a wildcard needs "dns" under "acme"`},
	{good, strings.ReplaceAll(web, "a.test", `"*.*.test"`), "letters, digits"},
	{withDNS("{}"), web, "dns: nothing sets records"},
	{withDNS("{command: [true]}"), strings.ReplaceAll(web, "a.test", `"*.a.test"`), ""},
	{withDNS("{command: [true]}"), strings.ReplaceAll(web, "protocol: http", "protocol: postgres"), ""},
	{withDNS("{command: [/no/such/program]}"), web, "command: "},
	{withDNS("{command: [true], resolvers: [10.0.0.1, '10.0.0.1:53', '2001:db8::1']}"), web, ""},
	{withDNS("{command: [true], resolvers: [ns.test]}"), web, `resolvers: "ns.test": want an IP address`},
	{withDNS("{command: [true], rfc2136: {server: ns.test, key: k, secret: YQ==}}"), web, `dns: the records are already set by "rfc2136"`},
	{withDNS("{rfc2136: {server: ns.test, key: k, secret: YQ==}}"), web, ""},
	{withDNS("{rfc2136: {server: '[2001:db8::1]:53', key: k, secret: YQ==, algorithm: hmac-sha512}}"), web, ""},
	{withDNS("{rfc2136: {server: ns.test}}"), web, "warning: rfc2136: without \"key\" updates are not signed"},
	{withDNS("{rfc2136: {server: ns.test, key: k}}"), web, `key: "secret" is missing`},
	{withDNS("{rfc2136: {server: ns.test, secret: YQ==}}"), web, `secret: "key" is missing`},
	{withDNS("{rfc2136: {server: ns.test, key: k, secret: '!'}}"), web, "secret: want the key in base64"},
	{withDNS("{rfc2136: {server: ns.test, key: k, secret: YQ==, algorithm: hmac-md5}}"), web, "algorithm"},
	{withDNS("{rfc2136: {server: 'https://ns.test', key: k, secret: YQ==}}"), web, "server: "},
}

// TestProblems: what is wrong in a file is said with its place.
func TestProblems(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(dnsProblems, []problem{
		{good, web, ""},
		{"", web, `c.yaml:2:87: listener "w": acme: the section "acme" is missing at the top of the file`},
		{"{storage: keys}", web, `c.yaml:1:7: "agree" is missing`},
		{"{agree: true}", web, `"storage" is missing`},
		{"{agree: false, storage: keys}", web, `agree: the authority gives certificates to those only who agree`},
		{"{agree: true, storage: keys, emial: a@b.test}", web, `unknown key "emial"; did you mean "email"?`},
		{"{agree: true, storage: keys, email: nobody}", web, `email: "nobody": want an address`},
		{"{agree: true, storage: keys, directory: 'http://ca.test/dir'}", web, `directory: "http://ca.test/dir": want the URL of an ACME directory`},
		{"{agree: true, storage: keys, directory: 'https://letsencrypt.org/'}", web, `is a page; did you mean "https://acme-v02.api.letsencrypt.org/directory"?`},
		{"{agree: true, storage: keys, staging: 'ca.test'}", web, `staging: "ca.test": want the URL`},
		{"{agree: true, storage: keys, key_type: p265}", web, `did you mean "p256"?`},
		{"{agree: true, storage: keys, ca: " + file + "}", web, "has no PEM certificate in it"},
		{"{agree: true, storage: " + file + "}", web, "is a file; want a folder"},
		{"{agree: true, storage: " + dir + "}", web, "warning: storage: other users may look into"},
		{good, plain, `warning: acme: no listener has "acme" under its "tls"`},
		{good, strings.ReplaceAll(web, "a.test", "[]"), "acme: the list is empty"},
		{good, strings.ReplaceAll(web, "a.test", "[a.test, b.test, a.test]"), `acme: "a.test" is there already`},
		{good, strings.ReplaceAll(web, "a.test", `"*"`), "letters, digits"},
		{"{agree: true, storage: keys, eab: {key_id: x}}", web, `"hmac_key" is missing`},
		{"{agree: true, storage: keys, eab: {key_id: x, hmac_key: 'a b'}}", web, "hmac_key: want the key in base64url"},
		{good, strings.ReplaceAll(web, "a.test", "127.0.0.1"), "want a DNS name such as www.example.com, not an address"},
		{good, strings.ReplaceAll(web, "a.test", "https://a.test"), "without scheme, port and path"},
		{good, strings.ReplaceAll(web, "a.test", "A.test"), "in lower case"},
		{good, strings.ReplaceAll(web, "a.test", "bücher.test"), "ASCII form"},
		{good, strings.ReplaceAll(web, "a.test", "a..test"), "labels of 1 to 63 characters"},
		{good, strings.ReplaceAll(web, "a.test", "a_b.test"), "letters, digits"},
		{good, strings.ReplaceAll(web, "a.test", "a.test, cert: none.crt"), `"key" is missing`},
		{good, strings.ReplaceAll(web, "protocol: http", "protocol: postgres"), "acme: nothing answers the authority"},
		{good, strings.ReplaceAll(web, "protocol: http", "protocol: postgres") + ", " + plain, ""},
	}...) {
		upstream := `{endpoints: ["127.0.0.1:1"]}`
		if strings.Contains(c.listeners, "postgres") {
			upstream = `{endpoints: ["127.0.0.1:1"], postgres: {user: u}}`
		}
		listeners := strings.Replace(c.listeners, plain, strings.Replace(plain, "upstream: u", "http: {routes: [{respond: {status: 404}}]}", 1), 1)
		if !strings.Contains(listeners, "upstream: u") {
			listeners += `, {name: t, protocol: tcp, listen: "127.0.0.1:0", upstream: u}`
		}
		section := ""
		if c.section != "" {
			section = "acme: " + c.section
		}
		_, problems := config.Parse("c.yaml", []byte(section+"\nlisteners: ["+listeners+"]\nupstreams: {u: "+upstream+"}\n"))
		if got := problems.String(); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s, %s:\n%swant %s", c.section, c.listeners, got, c.want)
		}
	}
}

// withDNS is a section with "dns".
func withDNS(by string) string { return "{agree: true, storage: keys, dns: " + by + "}" }

// TestMetricsAreDocumented compares the metrics of certificates with the table in docs/acme.md, both ways.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/acme.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| metric | |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`(headpond_[a-z_]+)`").FindAllStringSubmatch(table, -1) {
		documented[m[1]] = true
	}
	p, folder := startPebble(t, pebbleConfig{Blocked: []string{"a.test"}}), t.TempDir()
	g := run(t, folder, p.section(folder)+twoListenersFor("a.test", "127.0.0.1:1"))
	found := regexp.MustCompile(`(?m)^# TYPE (headpond_acme_[a-z_]+) `).FindAllStringSubmatch(get(t, g.Addr("admin"), "/metrics"), -1)
	for _, m := range found {
		if !documented[m[1]] {
			t.Errorf("docs/acme.md does not have %s", m[1])
		}
	}
	if len(found) == 0 || len(found) != len(documented) {
		t.Errorf("there are %v, documented are %v", found, documented)
	}
}

// TestDocumentedKeys compares the table of docs/acme.md with the configuration.
func TestDocumentedKeys(t *testing.T) {
	const file = "docs/acme.md"
	text, err := os.ReadFile("../" + file)
	if err != nil {
		t.Fatal(err)
	}
	repotest.CheckKeys(t, map[string]string{file: string(text)}, []repotest.KeyTable{
		{File: file, Header: "key of `acme`", Of: []any{acme.Settings{}}},
		{File: file, Header: "key of `dns`", Of: []any{acme.DNS{}}},
		{File: file, Header: "key of `rfc2136`", Of: []any{acme.RFC2136{}}},
	})
}
