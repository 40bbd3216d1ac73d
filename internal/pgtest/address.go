package pgtest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
)

// Addr returns the server's TCP address, "127.0.0.1:port". It survives Restart.
func (c *Cluster) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// Port returns the server's TCP port.
func (c *Cluster) Port() int { return c.port }

// SocketDir returns the directory of the server's Unix socket, as libpq's host takes it.
func (c *Cluster) SocketDir() string { return c.data() }

// SocketAddr returns the Unix socket as Headpond's configuration takes it, "unix:/…/.s.PGSQL.port".
func (c *Cluster) SocketAddr() string {
	return "unix:" + filepath.Join(c.SocketDir(), fmt.Sprintf(".s.PGSQL.%d", c.port))
}

// Superuser returns the name of the superuser, who owns database "postgres".
func (c *Cluster) Superuser() string { return superuser }

// Password returns the superuser's password.
func (c *Cluster) Password() string { return password }

// CAFile returns the certificate to trust, in PEM, of a cluster started with [WithTLS].
func (c *Cluster) CAFile() string { return filepath.Join(c.data(), "server.crt") }

// DSN returns a connection string over TCP for pgx and libpq.
func (c *Cluster) DSN(user, password, dbname string) string {
	u := url.URL{Scheme: "postgres", Host: c.Addr(), Path: "/" + dbname, User: url.UserPassword(user, password), RawQuery: "sslmode=disable"}
	return u.String()
}

// Bin returns the path of one of the server's programs, such as "pgbench".
func (c *Cluster) Bin(program string) string { return filepath.Join(c.server.bin, program) }

// Log returns the server's log since its last start.
func (c *Cluster) Log() string {
	data, err := os.ReadFile(c.logPath())
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return string(data)
}

func (c *Cluster) data() string    { return filepath.Join(c.dir, "data") }
func (c *Cluster) logPath() string { return filepath.Join(c.dir, "log") }

// socketDSN connects as the superuser over the Unix socket, which never asks for a password.
func (c *Cluster) socketDSN(dbname string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s application_name=%s connect_timeout=5", c.SocketDir(), c.port, superuser, dbname, ownName)
}
