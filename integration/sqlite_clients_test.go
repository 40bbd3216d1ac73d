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
	clients := []struct {
		name string
		run  func(t *testing.T, at string) *exec.Cmd
	}{
		{"node-pg", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Node(t, clienttest.Program(t, "node_pg.cjs"), "postgres://me@"+at)
		}},
		{"drizzle", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Node(t, clienttest.Program(t, "drizzle.cjs"), "postgres://me@"+at, t.TempDir())
		}},
		{"knex", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Node(t, clienttest.Program(t, "knex.cjs"), "postgres://me@"+at)
		}},
		{"sequelize", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Node(t, clienttest.Program(t, "sequelize.cjs"), "postgres://me@"+at)
		}},
		{"pandas", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, clienttest.Program(t, "pandas_frames.py"), "postgresql+psycopg://me@"+at)
		}},
		{"alembic", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, clienttest.Program(t, "alembic_migrate.py"), "postgresql+psycopg://me@"+at, t.TempDir())
		}},
		{"sqlalchemy-asyncpg", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, clienttest.Program(t, "sqlalchemy_orm.py"), "postgresql+asyncpg://me@"+at)
		}},
		{"sqlalchemy-psycopg", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, clienttest.Program(t, "sqlalchemy_orm.py"), "postgresql+psycopg://me@"+at)
		}},
		{"django", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, append([]string{clienttest.Program(t, "django_app.py")}, parts(t, at)...)...)
		}},
		{"pgcli", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, append([]string{clienttest.Program(t, "pgcli_session.py")}, parts(t, at)...)...)
		}},
		{"asyncpg", func(t *testing.T, at string) *exec.Cmd {
			return clienttest.Python(t, clienttest.Program(t, "asyncpg_pool.py"), "postgresql://me@"+at+"?sslmode=disable")
		}},
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
