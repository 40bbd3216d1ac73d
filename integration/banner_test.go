package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/tcppool"
)

// bannerServer is a real server that sends first and closes connections of silent clients.
type bannerServer struct {
	endpoints []string             // host:port first
	closed    func() int           // number of connections closed because the client was silent
	use       func(net.Conn) error // runs a client on a connection
}

// served runs a client. The server may close a silent connection at the moment when it is lent. That can happen once
// for each of the two warm connections, which are equally old.
func (s bannerServer) served(connect func() net.Conn) (err error) {
	for range 1 + 2 {
		if err = s.use(connect()); err == nil {
			break
		}
	}
	return err
}

// TestWarmConnectionsToBannerServers: connections kept by min_idle are not given to clients after the server has closed
// them for silence, although the server's banner can still be read from them. They are noticed when they would be lent,
// and without clients if idle connections are checked.
func TestWarmConnectionsToBannerServers(t *testing.T) {
	for name, start := range map[string]func(*testing.T) bannerServer{"SMTP": startExim, "MySQL": startMariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			before, warm := s.closed(), 0
			var listeners, upstreams strings.Builder
			var proxies, endpoints []string
			for i, endpoint := range s.endpoints {
				for _, interval := range []string{"never", "100ms"} {
					addr := address(t)
					proxies = append(proxies, addr)
					fmt.Fprintf(&listeners, "  - {name: l%d-%s, protocol: tcp, listen: %q, upstream: u%[1]d-%[2]s}\n", i, interval, addr)
					fmt.Fprintf(&upstreams, "  u%d-%s: {endpoints: [%q], pool: {min_idle: 2, check_interval: %[2]s}}\n", i, interval, endpoint)
					endpoints = append(endpoints, endpoint)
					warm += 2
				}
			}
			g := startGateway(t, "listeners:\n"+listeners.String()+"upstreams:\n"+upstreams.String())
			d := warmDialer(t, s.endpoints[0])
			warm += 2
			eventually(t, "silent connections are closed", func() error {
				if n := s.closed() - before; n < warm {
					return fmt.Errorf("%d are, of %d", n, warm)
				}
				return nil
			})
			for range 3 {
				for i, addr := range proxies {
					if err := s.served(func() net.Conn { return dial(t, addr) }); err != nil {
						t.Errorf("through the gateway to %s: %v", endpoints[i], err)
					}
				}
				borrows(t, s, d)
			}
			for i := range s.endpoints {
				eventually(t, "dead connections are noticed though no client comes", func() error {
					n := g.scrape().sum("headpond_pool_closed_total", fmt.Sprintf(`upstream="u%d-100ms"`, i), `reason="check"`)
					if n < 2 {
						return fmt.Errorf("%v are, of 2", n)
					}
					return nil
				})
			}
		})
	}
}

// warmDialer is a pool with two connections to the endpoint, in the test's process.
func warmDialer(t *testing.T, endpoint string) *tcppool.Dialer {
	t.Helper()
	d, err := tcppool.New(tcppool.Config{Limits: &pool.Limits{MinIdle: 2}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	c, err := d.DialContext(context.Background(), "tcp", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	return d
}

// borrows runs a client on a connection of an in-process pool.
func borrows(t *testing.T, s bannerServer, d *tcppool.Dialer) {
	t.Helper()
	err := s.served(func() net.Conn {
		c, err := d.DialContext(context.Background(), "tcp", s.endpoints[0])
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
	if err != nil {
		t.Errorf("on a connection of tcppool: %v", err)
	}
}

// silence is after how many seconds these servers close a silent connection. It is longer than a busy machine takes for
// this test's clients, because a connection that is lent just before its end ends during its use.
const silence = "8"

// startExim starts a mail server. It sends 220 first, and 421 before it closes.
func startExim(t *testing.T) bannerServer {
	bin := installed(t, "exim4-daemon-light", "exim4", "exim")
	dir := sharedDir(t)
	addr := address(t)
	_, port, _ := net.SplitHostPort(addr)
	config := filepath.Join(dir, "exim.conf")
	text := fmt.Sprintf(`primary_hostname = mail.test
spool_directory = %[1]s/spool
log_file_path = %[1]s/%%slog
pid_file_path = %[1]s/pid
local_interfaces = 127.0.0.1
daemon_smtp_ports = %[2]s
smtp_receive_timeout = %[3]ss
tls_advertise_hosts =
host_lookup =
keep_environment =
`, dir, port, silence)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "spool")} { // run by root it changes to its own user
		_ = os.Mkdir(d, 0o777)
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	p := start(t, exec.Command(bin, "-C", config, "-bdf"))
	awaitServer(t, p, addr)
	return bannerServer{
		endpoints: []string{addr},
		closed: func() int {
			log, err := os.ReadFile(filepath.Join(dir, "mainlog")) // Exim creates it with its first message
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return strings.Count(string(log), "command timeout")
		},
		use: useSMTP,
	}
}

func useSMTP(c net.Conn) error {
	defer c.Close()
	client, err := smtp.NewClient(c, "mail.test")
	if err != nil {
		return err
	}
	if err := client.Noop(); err != nil {
		return err
	}
	return client.Quit()
}

// startMariaDB starts a database server. It sends its version and a challenge first.
func startMariaDB(t *testing.T) bannerServer {
	install := installed(t, "mariadb-server-core", "mariadb-install-db")
	bin := installed(t, "mariadb-server-core", "mariadbd", "mysqld")
	client := installed(t, "mariadb-client-core", "mariadb", "mysql")
	dir := sharedDir(t)
	as := "--user=" + currentUser(t)
	data, tmp := "--datadir="+filepath.Join(dir, "data"), "--tmpdir="+dir // in a shared tmpdir a starting server removes the files of others
	if out, code := run(t, patience, install, "--no-defaults", data, tmp, as, "--auth-root-authentication-method=normal", "--skip-test-db"); code != 0 {
		t.Fatalf("mariadb-install-db: %d\n%s", code, out)
	}
	addr, socket := address(t), filepath.Join(dir, "s")
	_, port, _ := net.SplitHostPort(addr)
	p := start(t, exec.Command(bin, "--no-defaults", data, tmp, as, "--bind-address=127.0.0.1", "--port="+port, "--socket="+socket,
		"--pid-file="+filepath.Join(dir, "pid"), "--connect-timeout="+silence, "--skip-name-resolve"))
	awaitServer(t, p, addr)
	ask := func(how ...string) (string, error) {
		args := append([]string{"--no-defaults", "--user=root", "--batch", "--skip-column-names"}, how...)
		out, err := exec.Command(client, args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return strings.TrimSpace(string(out)), nil
	}
	abortedConnects := askedAgain(t, exec.Command(client, "--no-defaults", "--user=root", "--batch", "--unbuffered", "--skip-column-names", "--protocol=socket", "--socket="+socket),
		"select variable_value from information_schema.global_status where variable_name = 'Aborted_connects';")
	return bannerServer{
		endpoints: []string{addr, "unix:" + socket},
		closed: func() int {
			n, _ := strconv.Atoi(abortedConnects())
			return n
		},
		use: func(c net.Conn) error {
			return lend(c, func(socket string) error {
				out, err := ask("--protocol=socket", "--socket="+socket, "--skip-ssl", "--execute=select 6*7")
				if err == nil && out != "42" {
					err = fmt.Errorf("the answer is %q", out)
				}
				return err
			})
		},
	}
}

// askedAgain starts a client program that reads statements from its standard input, and returns a function that makes it run one and
// returns its answer of one line. The test polls: a program for each answer is most of its work.
func askedAgain(t *testing.T, client *exec.Cmd, statement string) func() string {
	t.Helper()
	in, err := client.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(in.Close(), client.Wait()) }) // it ends with its input, or has ended with the server
	lines := bufio.NewReader(out)
	return func() string {
		if _, err := fmt.Fprintln(in, statement); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
}

// lend runs a client program that connects to a Unix socket whose other end is c.
func lend(c net.Conn, client func(socket string) error) error {
	defer c.Close()
	dir, err := os.MkdirTemp("", "hp-lend-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		return err
	}
	defer l.Close()
	go func() { // ends with c and l
		near, err := l.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		go func() { _, _ = io.Copy(c, near) }()
		_, _ = io.Copy(near, c)
	}()
	return client(filepath.Join(dir, "s"))
}

// installed returns the first of the named programs, from Debian's package pkg.
func installed(t *testing.T, pkg string, names ...string) string {
	t.Helper()
	for _, name := range names {
		for _, dir := range []string{"", "/usr/sbin/", "/usr/libexec/"} {
			if path, err := exec.LookPath(dir + name); err == nil {
				return path
			}
		}
	}
	t.Fatalf("this test needs %s (`make test-deps` installs it, from %s)", names[0], pkg)
	return ""
}

// awaitServer waits until a started server accepts connections.
func awaitServer(t *testing.T, p *process, addr string) {
	t.Helper()
	eventually(t, p.Cmd.Path+" takes connections", func() error {
		if p.Ended() {
			t.Fatalf("it ended: %v\n%s", p.Err, p.out)
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

func currentUser(t *testing.T) string {
	t.Helper()
	out, code := run(t, conntest.Patience, "id", "-un")
	if code != 0 {
		t.Fatal(out)
	}
	return strings.TrimSpace(out)
}
