package pgbouncerini_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/internal/pgbouncerini"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files and the table of docs/moving.md; commit only the changes you understand")

// compare compares text with a golden file.
func compare(t *testing.T, file, text string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s has\n%s\nwant (go test -rewrite, if it should be so)\n%s", file, text, want)
	}
}

// convert converts a configuration of the files, which are in /no/such/etc: the checks must not read files of this machine.
func convert(files fstest.MapFS, opt pgbouncerini.Options) (*pgbouncerini.Result, error) {
	name := func(path string) string { return strings.TrimPrefix(path, "/no/such/etc/") }
	read := func(path string) ([]byte, error) { return files.ReadFile(name(path)) }
	file, err := pgbouncerini.Read("/no/such/etc/pgbouncer.ini", read)
	if err != nil {
		return nil, err
	}
	opt.Dir, opt.Read = "/var/lib/postgresql", read
	opt.Exists = func(path string) bool { _, err := fs.Stat(files, name(path)); return err == nil }
	return pgbouncerini.Convert(file, opt)
}

// TestGolden converts the configurations in testdata: the result and the reports.
func TestGolden(t *testing.T) {
	inis, err := filepath.Glob("testdata/*.ini")
	if err != nil || len(inis) == 0 {
		t.Fatal(inis, err)
	}
	for _, ini := range inis {
		text, err := os.ReadFile(ini)
		if err != nil {
			t.Fatal(err)
		}
		users, err := os.ReadFile("testdata/userlist.txt")
		if err != nil {
			t.Fatal(err)
		}
		result, err := convert(fstest.MapFS{"pgbouncer.ini": {Data: text}, "userlist.txt": {Data: users}}, pgbouncerini.Options{})
		if err != nil {
			t.Errorf("%s: %v", ini, err)
			continue
		}
		var reports strings.Builder
		for _, r := range result.Reports {
			fmt.Fprintln(&reports, r)
		}
		for _, p := range result.Passwords {
			fmt.Fprintf(&reports, "%s is for %s\n", p.Variable, p.Of)
		}
		base := strings.TrimSuffix(ini, ".ini")
		compare(t, base+".yaml", string(result.YAML))
		compare(t, base+".txt", reports.String())
		accepted(t, ini, result)
	}
}

// accepted checks that the gateway takes a result, but for files that are not there.
func accepted(t *testing.T, name string, result *pgbouncerini.Result) {
	t.Helper()
	for _, p := range result.Passwords {
		t.Setenv(p.Variable, "known")
	}
	cfg, problems := config.Parse(name, result.YAML)
	if cfg != nil {
		problems = append(problems, gateway.Check(cfg)...)
	}
	problems = slices.DeleteFunc(problems, func(p config.Problem) bool {
		return p.Warning || strings.Contains(p.Message, "cannot read \"/no/such/etc/")
	})
	if len(problems) > 0 {
		t.Errorf("%s: check reports\n%s", name, problems)
	}
}

// TestTable compares the table of docs/moving.md.
func TestTable(t *testing.T) {
	const file, begin, end = "../../docs/moving.md", "<!-- pgbouncerini -->\n", "<!-- /pgbouncerini -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %s", file, begin)
	}
	compare(t, file, before+begin+"\n"+pgbouncerini.Table()+"\n"+end+after)
}

const minimal = "[databases]\na = host=h\n[pgbouncer]\nlisten_addr = *\nauth_type = md5\nauth_file = userlist.txt\n"

// TestBrokenFiles: what PgBouncer would not accept is an error with its line, and no password is in it.
func TestBrokenFiles(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"listen_port = 1\n", `pgbouncer.ini:1: "listen_port" comes before the first section`},
		{"[pgbouncer\n", `pgbouncer.ini:1: the name of a section has no "]"`},
		{"[databsaes]\n", `pgbouncer.ini:1: unknown section [databsaes]; did you mean "databases"?`},
		{minimal + "lisen_port = 1\n", `pgbouncer.ini:7: unknown setting "lisen_port"; did you mean "listen_port"?`},
		{minimal + "listen_port\n", `pgbouncer.ini:7: want "key = value"`},
		{minimal + "listen_port = x\n", `pgbouncer.ini:7: listen_port: "x": want a port`},
		{minimal + "listen_port = 70000\n", `pgbouncer.ini:7: listen_port: "70000": want a port`},
		{minimal + "pool_mode = sesion\n", `did you mean "session"?`},
		{minimal + "server_lifetime = 1h\n", `want a number of seconds`},
		{minimal + "server_lifetime = -1\n", `want a number of seconds`},
		{minimal + "server_lifetime = nan\n", `want a number of seconds`},
		{minimal + "default_pool_size = 1.5\n", `want a whole number`},
		{minimal + "[databases]\nb = hots=1\n", `pgbouncer.ini:8: unknown setting "hots"; did you mean "host"?`},
		{minimal + "[databases]\nb = host=h password='s3cret\n", `pgbouncer.ini:8: b: the value of "password" has no closing quote`},
		{minimal + "[databases]\nb = host=h password='s3cret'x\n", `no space behind the quoted value of "password"`},
		{minimal + "[databases]\nb = host=h password='it's3cret'\n", `no space behind the quoted value of "password"`},
		{minimal + "[databases]\nb = host=h s3cret\n", `pgbouncer.ini:8: b: want key=value`},
		{minimal + "[databases]\nb = host=h port=\n", `"port" has no value`},
		{minimal + "[databases]\npgbouncer = host=h\n", `is the console`},
		{minimal + "[databases]\nb = host=\x00\n", `pgbouncer.ini:8: the line is not plain UTF-8 text`},
		{minimal + "[databases]\nb = host=\xff\n", `pgbouncer.ini:8: the line is not plain UTF-8 text`},
		{minimal + "%include nowhere.ini\n", `pgbouncer.ini:7: %include: `},
		{minimal + "%include pgbouncer.ini\n", `does a file include itself?`},
		{minimal + "%define x\n", `unknown directive`},
		{minimal + "client_tls_sslmode = allow\n", `pgbouncer.ini:7: client_tls_sslmode: needs client_tls_cert_file`},
		{"[pgbouncer]\nlisten_addr = *\n", `has no line that is not a comment`},
		{"[databases]\na = \n", `there is no section [pgbouncer]`},
		{"[databases]\na = \n[pgbouncer]\nunix_socket_dir =\n", `there is nowhere to listen`},
	} {
		_, err := convert(fstest.MapFS{"pgbouncer.ini": {Data: []byte(c.text)}}, pgbouncerini.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

// TestIncludes: an included file continues the section, and may begin another one, which the including file continues.
func TestIncludes(t *testing.T) {
	result, err := convert(fstest.MapFS{
		"pgbouncer.ini":   {Data: []byte("[pgbouncer]\nlisten_addr = ::1\n%include conf.d/more.ini\nb = host=b user=u\n")},
		"conf.d/more.ini": {Data: []byte("\xef\xbb\xbfauth_type = any\r\nmax_user_connections = 7\r\n[databases] ; those of this machine\n")},
	}, pgbouncerini.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(result.YAML), "endpoints: [\"b:5432\"]") || !strings.Contains(string(result.YAML), "auth: trust") {
		t.Errorf("%s", result.YAML)
	}
	if len(result.Reports) == 0 || !strings.HasPrefix(result.Reports[len(result.Reports)-1].String(), "conf.d/more.ini:2: max_user_connections: NOT SUPPORTED") {
		t.Errorf("reports: %q", result.Reports)
	}
}

// userOf returns the user of the upstream "a".
func userOf(t *testing.T, cfg *config.Config) string {
	t.Helper()
	return config.PartOf[protocols.UpstreamKeys](cfg.Upstream("a")).Postgres.User
}
