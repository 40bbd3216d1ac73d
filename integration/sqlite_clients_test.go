package integration

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
)

// TestSQLiteWithClients runs typical programs of the most used clients: each creates tables, writes, reads and looks at
// the schema. The same programs pass with PostgreSQL. Each has its own file.
func TestSQLiteWithClients(t *testing.T) {
	type command func(t *testing.T, at string) *exec.Cmd // most get a directory, too, whether they use it or not
	node := func(program string) command {
		return func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Node(t, clienttest.Program(t, program), "postgres://me@"+at, t.TempDir())
		}
	}
	python := func(program, scheme, parameters string) command {
		return func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, clienttest.Program(t, program), scheme+"://me@"+at+parameters, t.TempDir())
		}
	}
	inParts := func(program string) command {
		return func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, append([]string{clienttest.Program(t, program)}, parts(t, at)...)...)
		}
	}
	clients := []struct {
		name string
		run  command
	}{
		{"node-pg", node("node_pg.cjs")},
		{"drizzle", node("drizzle.cjs")},
		{"knex", node("knex.cjs")},
		{"sequelize", node("sequelize.cjs")},
		{"pandas", python("pandas_frames.py", "postgresql+psycopg", "")},
		{"alembic", python("alembic_migrate.py", "postgresql+psycopg", "")},
		{"sqlalchemy-asyncpg", python("sqlalchemy_orm.py", "postgresql+asyncpg", "")},
		{"sqlalchemy-psycopg", python("sqlalchemy_orm.py", "postgresql+psycopg", "")},
		{"django", inParts("django_app.py")},
		{"pgcli", inParts("pgcli_session.py")},
		{"asyncpg", python("asyncpg_pool.py", "postgresql", "?sslmode=disable")},
		{"jdbc", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Java(t, clienttest.Program(t, "Jdbc.java"), "jdbc:postgresql://"+at+"?user=me&sslmode=disable")
		}},
	}
	var listeners, upstreams strings.Builder
	addresses := map[string]string{}
	dir := sharedDir(t)
	for _, c := range clients {
		addresses[c.name] = address(t)
		fmt.Fprintf(&listeners, "  - {name: %s, protocol: postgres, listen: \"%s\", upstream: %s}\n", c.name, addresses[c.name], c.name)
		fmt.Fprintf(&upstreams, "  %s: {endpoints: [\"sqlite:%s\"], pool: {acquire_timeout: 2m}}\n", c.name, filepath.Join(dir, c.name+".db"))
	}
	startGateway(t, "listeners:\n"+listeners.String()+"upstreams:\n"+upstreams.String())
	t.Run("side by side", func(t *testing.T) {
		for _, c := range clients {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				out, err := c.run(t, addresses[c.name]+"/lite").CombinedOutput()
				if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "ok") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	})
}

// parts returns the arguments of programs that take host, port, database, user and a directory.
func parts(t *testing.T, at string) []string {
	t.Helper()
	address, database, _ := strings.Cut(at, "/")
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return []string{host, port, database, "me", t.TempDir()}
}
