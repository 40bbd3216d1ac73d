package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/bench/internal/proc"
	"github.com/headpond/headpond/internal/certs"
)

// The database of the benchmarks and its owner.
const (
	DB       = "bench"
	DBUser   = "bench"
	Password = "headpond"
)

// Postgres is a running server with the tables of pgbench.
type Postgres struct {
	Target
	Socket string // the folder of its Unix socket
	Rows   int    // in pgbench_accounts
	// Cert and Key are a self-signed certificate that the server and the poolers use.
	Cert, Key string
	// Secret is the bench user's password as stored by the server (SCRAM-SHA-256$…). With it a pooler checks a client
	// without deriving the key again.
	Secret string
	bin    string
	// watch is an administrator's connection over the Unix socket.
	watch *pgconn.PgConn
}

// postgresConf keeps the disk out of the measurement.
const postgresConf = `listen_addresses = '127.0.0.1'
unix_socket_directories = '%s'
max_connections = 400
shared_buffers = 256MB
fsync = off
synchronous_commit = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
max_wal_size = 4GB
autovacuum = off
jit = off
password_encryption = 'scram-sha-256'
ssl = on
ssl_cert_file = '%s'
ssl_key_file = '%s'
`

const postgresHBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

// StartPostgres creates a database of scale × 100,000 rows and starts its server.
func (s *Starter) StartPostgres(ctx context.Context, scale int) (*Postgres, error) {
	bin := s.Tools.Postgres.Path
	if bin == "" {
		return nil, fmt.Errorf("postgres: %w", ErrMissing)
	}
	cred, err := proc.Unprivileged()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.Group.Dir, "pg")
	pg := &Postgres{Socket: dir, Rows: scale * 100_000, bin: bin, Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
	}
	if err := pg.certificate(cred); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := tool(ctx, cred, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"); err != nil {
		return nil, err
	}
	err = errors.Join(
		appendFile(filepath.Join(data, "postgresql.conf"), fmt.Sprintf(postgresConf, dir, pg.Cert, pg.Key)),
		os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(postgresHBA), 0o644))
	if err != nil {
		return nil, err
	}
	if pg.Addr, err = proc.FreePort(); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(pg.Addr)
	pg.Proc, err = s.Group.Start(proc.Spec{Name: "postgres", Path: filepath.Join(bin, "postgres"), Args: []string{"-D", data, "-p", port}, Unprivileged: true, Quit: syscall.SIGINT})
	if err != nil {
		return nil, err
	}
	return pg, pg.fill(ctx, cred, port, scale)
}

// fill waits for the server and creates the database.
func (pg *Postgres) fill(ctx context.Context, cred *syscall.Credential, port string, scale int) error {
	if err := pg.Proc.WaitListening(pg.Addr); err != nil {
		return err
	}
	admin := fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres", pg.Socket, port)
	var c *pgconn.PgConn
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if c, err = pgconn.Connect(ctx, admin); err == nil {
			break
		}
		if pg.Proc.Ended() != nil || time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("postgres: %w\n%s", err, pg.Proc.Log())
		}
	}
	pg.watch = c
	for _, q := range []string{"CREATE ROLE " + DBUser + " LOGIN PASSWORD '" + Password + "'", "CREATE DATABASE " + DB + " OWNER " + DBUser} {
		if _, err := c.Exec(ctx, q).ReadAll(); err != nil {
			return fmt.Errorf("postgres: %s: %w", q, err)
		}
	}
	rows, err := c.Exec(ctx, "SELECT rolpassword FROM pg_authid WHERE rolname = '"+DBUser+"'").ReadAll()
	if err != nil || len(rows) != 1 || len(rows[0].Rows) != 1 {
		return fmt.Errorf("postgres: read the password's secret: %w", err)
	}
	pg.Secret = string(rows[0].Rows[0][0])
	err = tool(ctx, cred, pg.Bin("pgbench"), "-h", pg.Socket, "-p", port, "-U", DBUser, "-i", "-q", "-s", fmt.Sprint(scale), DB)
	if err != nil {
		return err
	}
	return tool(ctx, cred, pg.Bin("psql"), "-h", pg.Socket, "-p", port, "-U", DBUser, "-q", "-v", "ON_ERROR_STOP=1", "-c", lookUpFunctions, DB)
}

// lookUpFunctions are functions that look an account up. A pooler that knows what functions do can see that plain_balance leaves no state
// in a session, while any_balance could, because it executes a text.
const lookUpFunctions = `
CREATE FUNCTION plain_balance(int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN RETURN (SELECT abalance FROM pgbench_accounts WHERE aid = $1); END $$;
CREATE FUNCTION any_balance(int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE balance int;
BEGIN EXECUTE 'SELECT abalance FROM pgbench_accounts WHERE aid = ' || $1 INTO balance; RETURN balance; END $$;`

// Counter returns a function that reads how many sessions the database has had. It is nil before PostgreSQL 14, which
// does not count them. It is for one goroutine at a time.
func (pg *Postgres) Counter() func() (int64, error) {
	if _, err := pg.sessions(); err != nil {
		return nil
	}
	return pg.sessions
}

func (pg *Postgres) sessions() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rows, err := pg.watch.Exec(ctx, "SELECT sessions FROM pg_stat_database WHERE datname = '"+DB+"'").ReadAll()
	if err != nil || len(rows) != 1 || len(rows[0].Rows) != 1 {
		return 0, fmt.Errorf("postgres: count the sessions: %w", err)
	}
	return strconv.ParseInt(string(rows[0].Rows[0][0]), 10, 64)
}

// Bin returns the path of a program of the installation.
func (pg *Postgres) Bin(name string) string { return filepath.Join(pg.bin, name) }

// Access is the access through a pooler that asks clients for no password.
func (pg *Postgres) Access() PostgresAccess {
	return PostgresAccess{Auth: "trust", DB: DB, DBUser: DBUser, Password: Password}
}

// certificate makes a self-signed certificate that all users can read: it is used for this run
// only.
func (pg *Postgres) certificate(cred *syscall.Credential) error {
	cert, key := certs.PEM(certs.New().Certificate)
	err := errors.Join(os.WriteFile(pg.Cert, cert, 0o644), os.WriteFile(pg.Key, key, 0o600))
	if cred != nil && err == nil {
		err = os.Chown(pg.Key, int(cred.Uid), int(cred.Gid))
	}
	return err
}

// tool runs a program to its end.
func tool(ctx context.Context, cred *syscall.Credential, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	if cred != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	}
	if out, err := proc.Output(cmd); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(path), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
