package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/headpond/headpond/gateway" // its protocols
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/protocols"
)

const small = `listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:7000", upstream: echo}
upstreams:
  echo: {endpoints: ["127.0.0.1:9"]}
`

func TestDefaultsDependOnProtocol(t *testing.T) {
	t.Setenv("HEADPOND_TEST_USER", "app")
	cfg, problems := config.Load("testdata/good.yaml")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for name, want := range map[string]int{"pg": 20, "lite": 4, "api": 1024, "apiservers": 10_000} {
		if got := cfg.Upstream(name).Pool.MaxSize; got != want {
			t.Errorf("max_size of %s = %d, want %d", name, got, want)
		}
	}
	if got := config.PartOf[protocols.UpstreamKeys](cfg.Upstream("pg")).Postgres.Password.Reveal(); got != "s3cret" {
		t.Errorf("password = %q, want the file's content without its line break", got)
	}
}

func TestMinIdleLiftsTheDefaultMaxSize(t *testing.T) {
	cfg, problems := config.Parse("c.yaml", []byte(strings.Replace(small, "[\"127.0.0.1:9\"]", "[\"127.0.0.1:9\"], pool: {min_idle: 20000}", 1)))
	if problems.Err() != nil {
		t.Fatal(problems)
	}
	if got := cfg.Upstreams[0].Pool.MaxSize; got != 20000 {
		t.Errorf("max_size = %d, want 20000", got)
	}
}

func TestMarkFindsTheField(t *testing.T) {
	cfg, problems := config.Parse("c.yaml", []byte(small))
	if problems.Err() != nil {
		t.Fatal(problems)
	}
	if got := cfg.Mark(&cfg.Upstreams[0].Endpoints[0]).String(); got != "c.yaml:4:22" {
		t.Errorf("position = %s", got)
	}
	if got := cfg.Mark(&cfg.Admin).String(); got != "c.yaml" {
		t.Errorf("position of an absent key = %s", got)
	}
}

// TestSecretIsNeverPrinted tries every way a secret could reach a log or an error.
func TestSecretIsNeverPrinted(t *testing.T) {
	secret := config.NewSecret("hunter2")
	pg := protocols.PostgresUpstream{User: "app", Password: secret}
	var out []string
	for _, verb := range strings.Fields("%v %+v %#v %s %q %x %X %d %t %o") {
		out = append(out, fmt.Sprintf(verb, secret), fmt.Sprintf(verb, &secret), fmt.Sprintf(verb, pg), fmt.Sprintf(verb, &pg))
	}
	js, err := json.Marshal(pg)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", secret, "upstream", pg)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", secret, "upstream", pg)
	all := strings.Join(append(out, string(js), log.String()), "\n")
	hexed := fmt.Sprintf("%x", "hunter2")
	if strings.Contains(all, "hunter2") || strings.Contains(all, hexed) || strings.Contains(all, "104 117 110") {
		t.Errorf("the secret shows in:\n%s", all)
	}
	if !strings.Contains(log.String(), "[redacted]") {
		t.Errorf("log does not say that something is redacted:\n%s", log.String())
	}
	if secret.Reveal() != "hunter2" || (config.Secret{}).String() != "" {
		t.Error("Reveal or the zero value is wrong")
	}
}

// TestSecretIsNeverQuotedInProblems writes passwords where people write them by mistake.
func TestSecretIsNeverQuotedInProblems(t *testing.T) {
	t.Setenv("HEADPOND_TEST_SECRET", "hunter2")
	t.Setenv("HEADPOND_TEST_URL", "postgres://app:hunter2@db:5432/app?sslmode=hunter2")
	t.Setenv("HEADPOND_TEST_PAIR", "app:hunter2")
	for text, want := range map[string]string{
		`endpoints: ["${HEADPOND_TEST_SECRET}"], postgres: {user: a, password: {x: hunter2}, dbname: "${HEADPOND_TEST_SECRET}${"}`: "want host:port",
		`endpoints: ["postgres://app:hunter2@db:5432/app"]`:                                                                        `did you mean "db:5432"?`,
		`endpoints: ["postgres://app:hunt@er2/hunter2@db:5432"]`:                                                                   `did you mean "db:5432"?`,
		`endpoints: ["postgresql://db/app?user=app&password=hunter2"]`:                                                             "want host:port",
		`endpoints: ["host=db user=app Password=hunter2"]`:                                                                         "want host:port",
		`endpoints: ["app:hunter2@db:5432"]`:                                                                                       "want host:port",
		`endpoints: ["${HEADPOND_TEST_URL}"]`:                                                                                      `did you mean "db:5432"?`,
		`endpoints: ["${HEADPOND_TEST_PAIR}"]`:                                                                                     "the port is not a number",
		`endpoints: ["db:5432"], postgres: {user: app, password:hunter2}`:                                                          `want a space after "password:"`,
		`endpoints: ["db:5432"], postgres: {user: app, passwort:hunter2}`:                                                          `unknown key "passwort:…`,
		`endpoints: ["db:5432"], postgres: {user: app, password=hunter2}`:                                                          "unknown key",
		`endpoints: ["db:5432"], postgres: {user: app, password: !vault hunter2}`:                                                  `tag "!vault" has no meaning here`,
		`endpoints: ["db:5432"], postgres: {user: app, password: !!binary aHVudGVyMg==}`:                                           `tag "!!binary" has no meaning here`,
	} {
		_, problems := config.Parse("c.yaml", []byte(`listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:7000", upstream: pg}
upstreams:
  pg: {`+text+`}
`))
		if got := problems.String(); problems.Err() == nil || !strings.Contains(got, want) || strings.Contains(got, "hunt") || strings.Contains(got, "er2") {
			t.Errorf("%s\n%swant %q", text, got, want)
		}
	}
}

// TestEmptyVariableIsNoPassword: without a password the gateway would log in all the same where the server lets it.
func TestEmptyVariableIsNoPassword(t *testing.T) {
	t.Setenv("HEADPOND_TEST_EMPTY", "")
	for text, want := range map[string]string{
		`${HEADPOND_TEST_EMPTY}`:   "password: is empty",
		`${HEADPOND_TEST_EMPTY:-}`: "",
		``:                         "",
	} {
		_, problems := config.Parse("c.yaml", []byte(`listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:7000", upstream: pg}
upstreams:
  pg: {endpoints: ["db:5432"], postgres: {user: app, password: "`+text+`"}}
`))
		if got := problems.String(); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestLoadRefusesWhatIsNotAConfiguration(t *testing.T) {
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge.yaml")
	if err := os.WriteFile(huge, []byte(strings.Repeat("# filler\n", 200_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "nowhere.yaml"): "no such file",
		dir:                                "it is a folder",
		huge:                               "larger than 1024 KiB",
	} {
		cfg, problems := config.Load(path)
		if cfg != nil || len(problems) != 1 || !strings.Contains(problems.String(), want) {
			t.Errorf("%s: %v, want %q", path, problems, want)
		}
	}
}

// TestOverlap: one address may be written in several ways.
func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true}, {"127.0.0.1:80", "127.0.0.1:81", false}, {"127.0.0.1:80", "127.0.0.2:80", false},
		{"127.0.0.1:80", "127.0.0.1:0080", true}, {"127.0.0.1:0", "127.0.0.1:0", false}, {":00", ":0", false},
		{":80", "127.0.0.1:80", true}, {"0.0.0.0:80", "10.0.0.1:80", true}, {"[::]:80", "127.0.0.1:80", true}, {"[0::0]:80", "[::1]:80", true},
		{"[::1]:80", "[0:0:0:0:0:0:0:1]:80", true}, {"[::ffff:127.0.0.1]:80", "127.0.0.1:80", true}, {"[::1]:80", "127.0.0.1:80", false},
		{"[fe80::1%a]:80", "[fe80::1%b]:80", false}, {"[fe80::1%a]:80", "[FE80:0::1%a]:80", true},
		{"localhost:80", "127.0.0.1:80", true}, {"LocalHost:80", "localhost:80", true}, {"a.example:80", "A.example:80", true}, {"a.example:80", "b.example:80", false},
		{"unix:/run/a", "unix:/run//a", true}, {"unix:/run/b/../a", "unix:/run/a", true}, {"unix:/run/a", "unix:/run/b", false}, {"unix:/run/a", ":80", false},
	} {
		if config.Overlap(c.a, c.b) != c.want || config.Overlap(c.b, c.a) != c.want {
			t.Errorf("%s and %s: want %v", c.a, c.b, c.want)
		}
	}
	for address, want := range map[string]bool{"127.8.8.8:1": true, "Localhost:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true, "unix:/s": true, ":1": false, "0.0.0.0:1": false, "local:1": false, "nonsense": false} {
		if config.Loopback(address) != want {
			t.Errorf("Loopback(%s): want %v", address, want)
		}
	}
}

// TestListenerThatForwardsToItself would open connections until there are no files left. At the other end of a tunnel it is another one.
func TestListenerThatForwardsToItself(t *testing.T) {
	for _, c := range []struct {
		listen, endpoint string
		itself           bool
	}{
		{"127.0.0.1:7000", "127.0.0.1:7000", true}, {"127.0.0.1:7000", "localhost:7000", true}, {":7000", "127.0.0.1:7000", true}, {"0.0.0.0:7000", "[::1]:7000", true},
		{"unix:/run/s", "unix:/run//s", true}, {"127.0.0.1:7000", "127.0.0.1:7001", false}, {":7000", "10.0.0.1:7000", false}, {"127.0.0.1:7000", "127.0.0.2:7000", false},
		{":7000", "db.example:7000", false}, {"127.0.0.1:0", "127.0.0.1:7000", false},
	} {
		text := strings.NewReplacer("127.0.0.1:7000", c.listen, "127.0.0.1:9", c.endpoint).Replace(small)
		_, problems := config.Parse("c.yaml", []byte(text))
		if got := strings.Contains(problems.String(), "is this listener itself"); got != c.itself || (problems.Err() != nil) != c.itself {
			t.Errorf("%s to %s: %v", c.listen, c.endpoint, problems)
		}
		text = strings.Replace(text, "]}", "], tunnel: far}", 1) + "tunnels: {far: {connect: \"127.0.0.1:1\"}}\n"
		if _, problems := config.Parse("c.yaml", []byte(text)); problems.Err() != nil {
			t.Errorf("%s to %s through a tunnel: %v", c.listen, c.endpoint, problems)
		}
	}
}

// TestAliasBomb expands to far more values than a file may have.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("x-e: &e [" + strings.Repeat("\"127.0.0.1:9\",", 900) + "]\nupstreams:\n")
	for i := range 900 {
		fmt.Fprintf(&b, "  u%d: {endpoints: *e}\n", i)
	}
	cfg, problems := config.Parse("bomb.yaml", []byte(b.String()))
	if cfg != nil || !strings.Contains(problems.String(), "more than 100000 values") {
		t.Errorf("not refused: %d problems", len(problems))
	}
}

func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, "key%d: 1\n", i)
	}
	_, problems := config.Parse("many.yaml", []byte(b.String()))
	if len(problems) != 101 || !strings.Contains(problems[100].Message, "errors that are not listed: 4") {
		t.Errorf("%d problems, last: %v", len(problems), problems[len(problems)-1])
	}
}

// TestSchemaTags keeps every tag readable: a default that its own field refuses would be silently ignored.
func TestSchemaTags(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || !strings.HasPrefix(typ.PkgPath(), "github.com/headpond/") {
			return
		}
		seen[typ] = true
		for _, f := range config.Schema(typ) {
			if text, ok := f.Tag.Lookup("default"); ok {
				if err := config.SetTag(reflect.New(f.Type).Interface(), text, f.Tag); err != nil {
					t.Errorf("%s.%s: default %q: %v", typ.Name(), f.Name, text, err)
				}
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[config.Config]())
	if len(seen) < 20 {
		t.Errorf("only %d types seen", len(seen))
	}
}

// TestEditDistance compares with the definition, written without tables.
func TestEditDistance(t *testing.T) {
	var slow func(a, b string) int
	slow = func(a, b string) int {
		if a == "" || b == "" {
			return len(a) + len(b)
		}
		cost := 1
		if a[0] == b[0] {
			cost = 0
		}
		best := min(slow(a[1:], b)+1, slow(a, b[1:])+1, slow(a[1:], b[1:])+cost)
		if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
			best = min(best, slow(a[2:], b[2:])+1)
		}
		return best
	}
	words := []string{"", "a", "ab", "ba", "abc", "acb", "cab", "abcd", "badc", "dcba", "aaaa"}
	for _, a := range words {
		for _, b := range words {
			if got, want := config.EditDistance(a, b), slow(a, b); got != want {
				t.Errorf("distance(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}

// FuzzParse: nothing panics; an accepted file, written out and read again, is the same configuration, and is written
// out the same.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(small))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, problems := config.Parse("fuzz.yaml", data)
		if (cfg == nil) != (problems.Err() != nil) {
			t.Fatalf("config %v with problems %v", cfg != nil, problems)
		}
		if cfg == nil {
			return
		}
		first, err := cfg.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, problems := config.Parse("fuzz.yaml", first)
		if again == nil {
			t.Fatalf("refuses its own output:\n%s\n%s", problems, first)
		}
		second, err := again.YAML()
		if err != nil || !slices.Equal(first, second) {
			t.Fatalf("changed (%v):\n%s\nthen:\n%s", err, first, second)
		}
	})
}

// writeCertificate writes cert.pem and key.pem, valid for a time around now, into dir.
func writeCertificate(t *testing.T, dir string, from, to time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificatesThatExpire are warned about: they load, and clients refuse them.
func TestCertificatesThatExpire(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		from, to time.Duration
		want     string
	}{{-2 * day, -day, "has expired on "}, {day, 90 * day, "is not valid before "}, {-day, 6 * day, "expires on "}, {-day, 90 * day, ""}} {
		dir := t.TempDir()
		writeCertificate(t, dir, c.from, c.to)
		cfg, problems := config.Parse(filepath.Join(dir, "c.yaml"), []byte(`listeners: [{name: a, protocol: tcp, listen: "127.0.0.1:1", upstream: u, tls: {cert: cert.pem, key: key.pem}}]
upstreams: {u: {endpoints: ["127.0.0.1:2"]}}
`))
		if got := problems.String(); cfg == nil || (got == "") != (c.want == "") || !strings.Contains(got, c.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("valid from %v to %v: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}

// TestKeysThatDoNotFit: the message says what is the matter with the key, not which structure its bytes lack.
func TestKeysThatDoNotFit(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	writeCertificate(t, dir, -time.Hour, 100*24*time.Hour)
	writeCertificate(t, other, -time.Hour, 100*24*time.Hour)
	foreign, err := os.ReadFile(filepath.Join(other, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for want, key := range map[string][]byte{
		"the key must belong to the first certificate of the file": foreign,
		"encrypted with a passphrase, which nobody can enter here": pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}),
		"; \"openssl pkey -in ": pem.EncodeToMemory(&pem.Block{
			Type: "RSA PRIVATE KEY", Bytes: []byte("x"), Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-128-CBC,00"},
		}),
	} {
		if err := os.WriteFile(filepath.Join(dir, "key.pem"), key, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, problems := config.Parse(filepath.Join(dir, "c.yaml"), []byte(`listeners: [{name: a, protocol: tcp, listen: "127.0.0.1:1", upstream: u, tls: {cert: cert.pem, key: key.pem}}]
upstreams: {u: {endpoints: ["127.0.0.1:2"]}}
`))
		if got := problems.String(); cfg != nil || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestManyWarningsAreNoError: however many warnings a file causes, it can be used, and its errors are reported.
func TestManyWarningsAreNoError(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, -time.Hour, 24*time.Hour)
	file := func(listeners int) string {
		var b strings.Builder
		b.WriteString("upstreams: {u: {endpoints: [\"127.0.0.1:2\"]}}\nlisteners:\n")
		for i := range listeners {
			fmt.Fprintf(&b, "- {name: l%d, protocol: tcp, listen: \"127.0.0.1:%d\", upstream: u, tls: {cert: cert.pem, key: key.pem}}\n", i, 1000+i)
		}
		return b.String()
	}
	cfg, problems := config.Parse(filepath.Join(dir, "c.yaml"), []byte(file(150)))
	if cfg == nil || len(problems) != 101 || !problems[100].Warning || problems[100].Message != "warnings that are not listed: 50 more" {
		t.Errorf("refused: %t; %d problems, last: %v", cfg == nil, len(problems), problems[len(problems)-1])
	}
	cfg, problems = config.Parse(filepath.Join(dir, "c.yaml"), []byte(file(150)+"- {name: last, protocol: tcp, listen: \"127.0.0.1:9\", upstream: w}\n"))
	if err := problems.Err(); cfg != nil || err == nil || !strings.Contains(err.Error(), `unknown upstream "w"`) {
		t.Errorf("an error behind many warnings is reported as %v", err)
	}
}

// TestTooManyUpstreamsIsTheOnlyProblem: those beyond the limit exist all the same.
func TestTooManyUpstreamsIsTheOnlyProblem(t *testing.T) {
	var b strings.Builder
	b.WriteString("listeners: [{name: a, protocol: tcp, listen: \"127.0.0.1:1\", upstream: u1000}, {name: b, protocol: http, listen: \"127.0.0.1:2\", upstream: u7}]\nupstreams:\n")
	for i := range 1001 {
		fmt.Fprintf(&b, "  u%d: {endpoints: [\"127.0.0.1:9\"]}\n", i)
	}
	_, problems := config.Parse("c.yaml", []byte(b.String()))
	if err := problems.Err(); err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "has 1001 entries; at most 1000 are possible") {
		t.Errorf("reported: %v", err)
	}
}

func TestModeAndOwnerAreOfUnixSockets(t *testing.T) {
	for settings, want := range map[string]string{
		`listen: "unix:/run/s", socket: {mode: "0660", owner: "app:app"}`: "",
		`listen: "unix:/run/s", socket: {mode: 0660}`:                     "",
		`listen: "unix:/run/s", socket: {mode: rw-rw----}`:                "want octal permissions",
		`listen: "unix:/run/s", socket: {mode: "0060"}`:                   "want octal permissions",
		`listen: "unix:/run/s", socket: {owner: "app:"}`:                  "want user or user:group",
		`listen: "127.0.0.1:1", socket: {mode: "0660"}`:                   "only a unix socket has a mode",
	} {
		_, problems := config.Parse("c.yaml", []byte("upstreams: {u: {endpoints: [\"127.0.0.1:9\"]}}\nlisteners: [{name: a, protocol: tcp, upstream: u, "+settings+"}]\n"))
		if got := problems.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", settings, got, want)
		}
	}
}
