package pgbouncerini_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/pgbouncerini"
)

// values are what random settings have, if PgBouncer accepts it.
var values = []string{
	"0", "1", "7", "300", "-1", "0.2", "1e9", "2147483647", "0660", "*", "a", "::1", "127.0.0.1", "10.0.0.1,10.0.0.2", "/run/a", "@a", "x y", "'", "${x", "#", "\"", "é",
	"set work_mem to '1MB'", "disable", "prefer", "require", "verify-ca", "Verify-Full", "session", "transaction", "statement",
	"trust", "any", "plain", "md5", "cert", "hba", "pam", "ldap", "scram-sha-256", "round-robin", "u", "m", "/no/such/etc/f", "SELECT f($1)", "SELECT a, b FROM f($1)",
}

// random writes random settings of a section: all between commas that a line of its own, or a connection string, takes.
func random(r *rand.Rand, section, separator string, quote func(string) string) string {
	var b strings.Builder
	accepts := pgbouncerini.Accepts(section)
	for _, key := range slices.Sorted(maps.Keys(accepts)) {
		if value := values[r.IntN(len(values))]; r.IntN(3) == 0 && accepts[key](value) {
			b.WriteString(key + "=" + quote(value) + separator)
		}
	}
	return b.String()
}

// TestRandomSettings: every combination of settings that PgBouncer accepts becomes a configuration that the gateway
// understands, though names and files in it may not exist.
func TestRandomSettings(t *testing.T) {
	plain := func(text string) string { return text }
	quoted := func(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		var ini strings.Builder
		ini.WriteString("[databases]\n")
		for _, name := range []string{"a", "'é'", "b.c-d", "*"} {
			fmt.Fprintf(&ini, "%s = %s\n", name, random(r, "databases", " ", quoted))
		}
		fmt.Fprintf(&ini, "[users]\nu = %s\n[peers]\n1 = host=h %s\n", random(r, "users", " ", quoted), random(r, "peers", " ", quoted))
		fmt.Fprintf(&ini, "[pgbouncer]\nauth_file = userlist.txt\n%s", random(r, "pgbouncer", "\n", plain))
		result, err := convert(fstest.MapFS{"pgbouncer.ini": {Data: []byte(ini.String())}, "userlist.txt": {Data: []byte("\"u\" \"secret\"\n\"m\" \"md50123456789abcdef0123456789abcdef\"\n")}}, pgbouncerini.Options{})
		if err != nil {
			if !strings.Contains(err.Error(), "nowhere to listen") && !strings.Contains(err.Error(), "client_tls_cert_file") && !strings.Contains(err.Error(), "needs auth_hba_file") {
				t.Errorf("%d: %v\n%s", seed, err, &ini)
			}
			continue
		}
		for _, p := range result.Passwords {
			t.Setenv(p.Variable, "known")
		}
		_, problems := config.Parse("result", result.YAML)
		for _, p := range problems {
			if !p.Warning && !slices.ContainsFunc(expected, func(text string) bool { return strings.Contains(p.Message, text) }) {
				t.Errorf("%d: %s\n%s\n%s", seed, p, result.YAML, &ini)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// expected are parts of the problems that random names and files have.
var expected = []string{
	"cannot read", "did you mean \":", "cannot be in a host name", "is not an IP address", "want host:port", // names
	"needs certificates of clients", `needs "users_file"`, "as $1", "is this listener itself", "want user or user:group", "nothing to forward to", "\"upstreams\" is missing", // pam and others; queries; sockets of the abstract namespace
}
