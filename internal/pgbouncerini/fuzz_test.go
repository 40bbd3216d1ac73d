package pgbouncerini_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/pgbouncerini"
)

// FuzzConvert: whatever a file has, the result is YAML with known keys, and holds no password.
func FuzzConvert(f *testing.F) {
	inis, _ := filepath.Glob("testdata/*.ini")
	for _, ini := range inis {
		text, err := os.ReadFile(ini)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("[databases]\n'${x}' = user='#\"' password='a ${b} ''c''' host=a,b\n'<<' = host=1\n.. = user=x\n~ = \n[pgbouncer]\nlisten_addr = %, \n[users] u = pool_size=1\n%include pgbouncer.ini\n")
	f.Fuzz(func(t *testing.T, text string) {
		result, err := convert(fstest.MapFS{"pgbouncer.ini": {Data: []byte(text)}, "userlist.txt": {Data: []byte("\"u\" \"of the file\"\n")}}, pgbouncerini.Options{})
		if err != nil {
			return
		}
		_, problems := config.Parse("result", result.YAML)
		for _, p := range problems {
			for _, bad := range []string{"YAML", "unknown", "control character", "UTF-8", "want a ", "twice", "out of range", "want true"} {
				if strings.Contains(p.Message, bad) && !strings.Contains(p.Message, "environment variable") {
					t.Errorf("%s\n%s", p, result.YAML)
				}
			}
		}
		for _, p := range result.Passwords {
			if len(p.Value) > 20 && strings.Count(string(result.YAML), p.Value) > strings.Count(strings.ReplaceAll(text, "password", ""), p.Value) {
				t.Errorf("the password %q is in\n%s", p.Value, result.YAML)
			}
		}
	})
}

// FuzzValues: the value of a connection string arrives as it was quoted.
func FuzzValues(f *testing.F) {
	for _, value := range []string{"x", "it's", "''", " a=b ", "${HOME}", "$${", "\\", "é#: -", `"`} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if value == "" || strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f || c == 0xfffd }) {
			return
		}
		ini := "[databases]\na = host=h user='" + strings.ReplaceAll(value, "'", "''") + "' dbname=d\n[pgbouncer]\nlisten_addr = *\nauth_type = any\n"
		result, err := convert(fstest.MapFS{"pgbouncer.ini": {Data: []byte(ini)}}, pgbouncerini.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cfg, problems := config.Parse("result", result.YAML)
		if cfg == nil {
			t.Fatalf("%s\n%s", problems, result.YAML)
		}
		if got := userOf(t, cfg); got != value {
			t.Errorf("%q, want %q", got, value)
		}
	})
}
