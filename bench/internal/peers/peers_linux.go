package peers

import (
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"text/template"

	"github.com/headpond/headpond/bench/internal/proc"
)

//go:embed conf
var confs embed.FS

// templates are the configurations, by file name.
var templates = template.Must(template.New("").ParseFS(confs, "conf/*"))

// ErrMissing is wrapped by the error of a program that is not installed.
var ErrMissing = errors.New("not installed")

// Target is a running arm: where to connect and what to measure.
type Target struct {
	Addr string
	// Proc is nil for an arm without its own process, for example no proxy.
	Proc *proc.Process
}

// Starter starts arms in a group of processes.
type Starter struct {
	Group    *proc.Group
	Tools    Tools
	Headpond string // the gateway's program
	Self     string // this program
	Loops    int    // loops, threads or workers for each arm
	n        atomic.Int64
}

// Gateway is an arm that runs Headpond.
type Gateway struct {
	Engine, Protocol, Target string
	Warm                     int  // connections opened ahead of demand
	TLS                      bool // to the backend
	H2                       bool // HTTP only: HTTP/2 without TLS to the backend
	SQLite                   bool
	Postgres                 PostgresAccess
}

// PostgresAccess is how a pooler authenticates clients, and how it logs in to the server.
type PostgresAccess struct {
	Auth, UsersFile      string // of clients: trust or scram-sha-256
	TLSCert, TLSKey      string
	DB, DBUser, Password string
}

// render writes a configuration for the arm.
func (s *Starter) render(file, name string, data any) (string, error) {
	var b strings.Builder
	if err := templates.ExecuteTemplate(&b, file, data); err != nil {
		return "", err
	}
	return s.Group.File(fmt.Sprintf("%d-%s-%s", s.n.Add(1), name, file), b.String())
}

// launch starts the process and waits until it listens.
func (s *Starter) launch(spec proc.Spec, addr string) (*Target, error) {
	p, err := s.Group.Start(spec)
	if err != nil {
		return nil, err
	}
	if err := p.WaitListening(addr); err != nil {
		p.Stop()
		return nil, err
	}
	return &Target{Addr: addr, Proc: p}, nil
}

// StartGateway starts Headpond.
func (s *Starter) StartGateway(g Gateway) (*Target, error) {
	addr, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	file, err := s.render("gateway.yaml", g.Engine, struct {
		Gateway
		PostgresAccess
		Listen string
		Loops  int
	}{g, g.Postgres, addr, s.Loops})
	if err != nil {
		return nil, err
	}
	return s.launch(proc.Spec{Name: "headpond-" + g.Engine, Path: s.Headpond, Args: []string{"serve", file}}, addr)
}

// proxyConf is the data for the templates of HAProxy and nginx.
type proxyConf struct {
	Name, Listen, Target, Dir, User, Module string
	Threads                                 int
	TLS, H2, Bulk                           bool
}

// HAProxy is an arm of HAProxy.
type HAProxy struct {
	Mode, Target string // "tcp" or "http"
	Threads      int    // 0 0 is HAProxy's default, one per processor
	TLS          bool   // to the backend
	H2           bool   // HTTP only: HTTP/2 without TLS on both sides
	Bulk         bool   // HTTP only: larger buffers, faster with large bodies at the cost of memory
}

// StartHAProxy starts HAProxy.
func (s *Starter) StartHAProxy(h HAProxy) (*Target, error) {
	if s.Tools.HAProxy.Path == "" {
		return nil, fmt.Errorf("haproxy: %w", ErrMissing)
	}
	addr, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	file, err := s.render("haproxy-"+h.Mode+".cfg", "haproxy", proxyConf{Listen: addr, Target: h.Target, Threads: h.Threads, TLS: h.TLS, H2: h.H2, Bulk: h.Bulk})
	if err != nil {
		return nil, err
	}
	return s.launch(proc.Spec{Name: "haproxy", Path: s.Tools.HAProxy.Path, Args: []string{"-db", "-q", "-f", file}}, addr)
}

// StartNginx starts nginx in mode "stream" or "http".
func (s *Starter) StartNginx(mode, target string, tls bool) (*Target, error) {
	if s.Tools.Nginx.Path == "" || mode == "stream" && s.Tools.NoStream != "" {
		return nil, fmt.Errorf("nginx: %w", ErrMissing)
	}
	addr, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	conf := proxyConf{Name: fmt.Sprint(s.n.Add(1)), Listen: addr, Target: target, Dir: s.Group.Dir, Threads: s.Loops, TLS: tls, Module: s.Tools.StreamModule}
	if os.Getuid() == 0 {
		conf.User = "root" // its temporary files are in our directory
	}
	file, err := s.render("nginx-"+mode+".conf", "nginx", conf)
	if err != nil {
		return nil, err
	}
	return s.launch(proc.Spec{Name: "nginx", Path: s.Tools.Nginx.Path, Args: []string{"-c", file, "-p", s.Group.Dir, "-e", "stderr"}}, addr)
}

// both runs a program twice. Its end ends both processes.
const both = `trap 'kill $a $b' TERM; "$0" "$1" & a=$!; "$0" "$1" & b=$!; wait; wait`

// StartPgBouncer starts PgBouncer for the PostgreSQL server at target: one process, or two that share the port.
func (s *Starter) StartPgBouncer(target string, access PostgresAccess, pair bool) (*Target, error) {
	if s.Tools.PgBouncer.Path == "" {
		return nil, fmt.Errorf("pgbouncer: %w", ErrMissing)
	}
	addr, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	listenHost, listenPort, err1 := net.SplitHostPort(addr)
	host, port, err2 := net.SplitHostPort(target)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	file, err := s.render("pgbouncer.ini", "pgbouncer", struct {
		PostgresAccess
		ListenHost, ListenPort, Host, Port string
		Pair, Prepared                     bool
	}{access, listenHost, listenPort, host, port, pair, atLeast(s.Tools.PgBouncer.Version, 1, 21)})
	if err != nil {
		return nil, err
	}
	spec := proc.Spec{Name: "pgbouncer", Path: s.Tools.PgBouncer.Path, Args: []string{file}, Unprivileged: true}
	if pair {
		spec.Path, spec.Args = "/bin/sh", []string{"-c", both, s.Tools.PgBouncer.Path, file}
	}
	return s.launch(spec, addr)
}

// StartSelf starts this program as a proxy of the given kind for target; see package arms.
func (s *Starter) StartSelf(kind, target string, env ...string) (*Target, error) {
	addr, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	return s.launch(proc.Spec{Name: kind, Path: s.Self, Args: []string{"arm", kind, addr, target}, Env: env}, addr)
}

// StartProgram starts a server whose address is given in its environment.
func (s *Starter) StartProgram(name, path string, args []string, env func(addr string) []string) (*Target, error) {
	addr, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	return s.launch(proc.Spec{Name: name, Path: path, Args: args, Env: env(addr)}, addr)
}

// StartBackend starts this program as a backend. Its counter is served on another port.
func (s *Starter) StartBackend(kind string) (*Backend, error) {
	stats, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	addr, err := proc.FreePort()
	if err != nil {
		return nil, err
	}
	t, err := s.launch(proc.Spec{Name: "backend-" + kind, Path: s.Self, Args: []string{"backend", kind, addr, stats}}, addr)
	if err != nil {
		return nil, err
	}
	return &Backend{Target: *t, stats: stats}, nil
}

// Backend is a running backend.
type Backend struct {
	Target
	stats string
}

// Accepted returns the backend's number of connections. Each call opens a connection to the counter's port.
func (b *Backend) Accepted() (int64, error) {
	c, err := net.Dial("tcp", b.stats)
	if err != nil {
		return 0, fmt.Errorf("counters of %s: %w", b.Proc.Name, err)
	}
	defer c.Close()
	var n int64
	_, err = fmt.Fscan(c, &n)
	return n, err
}
