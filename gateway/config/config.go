package config

import (
	"net/netip"
	"time"
)

// Config is one configuration file, checked and with its defaults filled in. It is read-only once Load or Parse returned it.
//
// The conf tags are the keys of the file; doc.go describes the other tags.
type Config struct {
	File         string        `conf:"-"`                                                     // the name Load or Parse was given
	Admin        string        `conf:"admin" type:"address"`                                  // admin page address; empty: none
	Engine       Engine        `conf:"engine" default:"auto"`                                 // default auto
	Loops        int           `conf:"loops" default:"0" min:"0" max:"1024"`                  // threads that run sessions; default half the cores
	DrainTimeout time.Duration `conf:"drain_timeout" default:"30s" min:"0s" max:"24h"`        // how long sessions may finish when the gateway ends; default 30s
	Log          Log           `conf:"log"`                                                   //
	Listeners    []Listener    `conf:"listeners" required:"checked" maxlen:"1000"`            // at least one, unless there are Tunnels
	Upstreams    []Upstream    `conf:"upstreams" required:"checked" key:"Name" maxlen:"1000"` // in the order of the file; at least one, unless all is tunnels
	Tunnels      []Tunnel      `conf:"tunnels" key:"Name" maxlen:"1000"`                      // to other gateways

	marks map[any]Position // where each field stands in the file, by the field's address
}

// Engine names how sessions are run.
type Engine string

// The engines; see package fiber.
const (
	EngineAuto      Engine = "auto"
	EngineUring     Engine = "uring"
	EngineEpoll     Engine = "epoll"
	EngineGoroutine Engine = "goroutine"
)

func (Engine) values() []string { return []string{"auto", "uring", "epoll", "goroutine"} }

// Log says how the gateway logs to standard error.
type Log struct {
	Format LogFormat `conf:"format" default:"text"` // text (default) or json
	Level  LogLevel  `conf:"level" default:"info"`  // debug, info (default), warn or error
}

// LogFormat is text or json.
type LogFormat string

func (LogFormat) values() []string { return []string{"text", "json"} }

// LogLevel is debug, info, warn or error.
type LogLevel string

func (LogLevel) values() []string { return []string{"debug", "info", "warn", "error"} }

// Protocol is what a listener speaks.
type Protocol string

// The protocols of a listener.
const (
	TCP            Protocol = "tcp"
	HTTP           Protocol = "http"
	Postgres       Protocol = "postgres"
	TunnelProtocol Protocol = "tunnel" // other gateways connect; of an upstream: they may name it
)

func (Protocol) values() []string { return []string{"tcp", "http", "postgres", "tunnel"} }

// Listener is one address that clients connect to.
type Listener struct {
	Name           string            `conf:"name" required:"true" type:"name"`
	Protocol       Protocol          `conf:"protocol" required:"true"`
	Listen         string            `conf:"listen" required:"true" type:"address"` // host:port or unix:/path
	Socket         *Socket           `conf:"socket"`                                // of unix:/path; nil: the umask's permissions, the gateway's user
	Upstream       string            `conf:"upstream"`                              // where sessions go unless a route or database says otherwise
	TLS            *ServerTLS        `conf:"tls"`                                   // nil: clear text
	MaxConns       int               `conf:"max_conns" default:"10000" min:"1" max:"10000000"`
	MaxQueue       int               `conf:"max_queue" default:"1024" min:"0" max:"10000000"` // connections waiting for a place
	QueueTimeout   time.Duration     `conf:"queue_timeout" default:"5s" min:"1ms" max:"1h"`
	AccessLog      bool              `conf:"access_log"`                    // one log line per session or request
	AcceptProxy    bool              `conf:"accept_proxy"`                  // expect a PROXY v1/v2 header from TrustedProxies
	TrustedProxies []netip.Prefix    `conf:"trusted_proxies" maxlen:"1000"` // empty: loopback
	Postgres       *PostgresListener `conf:"postgres"`                      // set exactly when Protocol is postgres
	HTTP           *HTTPListener     `conf:"http"`                          // set exactly when Protocol is http
	TCP            *TCPListener      `conf:"tcp"`                           // set exactly when Protocol is tcp
	Tunnel         *TunnelListener   `conf:"tunnel"`                        // set exactly when Protocol is tunnel
}

// Socket says who may connect to a unix socket.
type Socket struct {
	Mode  string `conf:"mode" type:"mode"`   // octal permissions; empty: what the umask leaves
	Owner string `conf:"owner" type:"owner"` // user or user:group, names or numbers; empty: the gateway's
}

// ServerTLS is the certificate a listener shows to its clients.
type ServerTLS struct {
	Cert Path `conf:"cert" required:"true"` // PEM, leaf first
	Key  Path `conf:"key" required:"true"`  // PEM
	// ClientCA makes a tunnel listener ask for certificates of one of these authorities; PEM.
	ClientCA Path `conf:"client_ca"`
}

// PostgresListener is what only a postgres listener has.
type PostgresListener struct {
	Mode      PoolMode `conf:"mode" default:"transaction"`
	Auth      Auth     `conf:"auth"`       // default: scram-sha-256 with a users file, else trust (refused off loopback unless written out)
	UsersFile Path     `conf:"users_file"` // lines of "user" "secret"
	// RequireTLS refuses clients without TLS, but for those of Unix sockets.
	RequireTLS bool       `conf:"require_tls"`
	Databases  []Database `conf:"databases" key:"Name" scalar:"Upstream" maxlen:"10000"` // empty: every database is the listener's upstream
}

// PoolMode is how long a client keeps a server connection.
type PoolMode string

// The pool modes.
const (
	TransactionMode PoolMode = "transaction"
	SessionMode     PoolMode = "session"
)

func (PoolMode) values() []string { return []string{"transaction", "session"} }
func (PoolMode) later() []string  { return []string{"statement"} }

// Auth is how clients of a postgres listener prove who they are.
type Auth string

// The ways to authenticate.
const (
	AuthTrust Auth = "trust"
	AuthMD5   Auth = "md5"
	AuthSCRAM Auth = "scram-sha-256"
)

func (Auth) values() []string { return []string{"trust", "md5", "scram-sha-256"} }

// Database sends one database name, or "*" for every other one, to an upstream.
type Database struct {
	Name     string `conf:"-"`
	Upstream string `conf:"upstream" required:"true"`
}

// HTTPListener is what only an http listener has.
type HTTPListener struct {
	Routes []Route `conf:"routes" maxlen:"10000"` // empty: everything goes to the listener's upstream
}

// Route sends requests to an upstream. The most specific route wins.
type Route struct {
	Host        string        `conf:"host"`                                                         // empty: any
	Path        string        `conf:"path" default:"/"`                                             // prefix, by whole path segments
	StripPrefix bool          `conf:"strip_prefix"`                                                 // forward without Path
	Upstream    string        `conf:"upstream"`                                                     // default: the listener's upstream
	Timeout     time.Duration `conf:"timeout" default:"60s" min:"1ms" max:"168h" never:"-1ns"`      // from the request to the response's header
	IdleTimeout time.Duration `conf:"idle_timeout" default:"10m" min:"1ms" max:"168h" never:"-1ns"` // between two pieces of a body, or of an upgraded connection
}

// TCPListener is what only a tcp listener has.
type TCPListener struct {
	IdleTimeout time.Duration `conf:"idle_timeout" default:"1h" min:"1ms" max:"8760h" never:"-1ns"` // a session without a byte in either direction ends
	SendProxy   SendProxy     `conf:"send_proxy" default:"off"`                                     // tell the backend the client's address
}

// TunnelListener is what only a tunnel listener has. Peers that connect have a certificate (tls: client_ca), the PSK, or both.
type TunnelListener struct {
	PSK          Secret        `conf:"psk"`                                             // at least 16 bytes
	Peers        []TunnelPeer  `conf:"peers" key:"Name" names:"true" maxlen:"1000"`     // who may connect; empty: whoever authenticates
	Upstreams    []string      `conf:"upstreams" maxlen:"1000"`                         // what peers may name
	Allow        []string      `conf:"allow" type:"rule" maxlen:"1000"`                 // what peers may have dialled: host:port, CIDR:port, unix:/path
	DialTimeout  time.Duration `conf:"dial_timeout" default:"5s" min:"1ms" max:"10m"`   // connecting to one of these
	MaxStreams   int           `conf:"max_streams" default:"1024" min:"1" max:"8192"`   // connections a peer may have open
	MaxSessions  int           `conf:"max_sessions" default:"256" min:"1" max:"100000"` // of all peers
	PeerSessions int           `conf:"max_sessions_per_peer" min:"0" max:"100000"`      // of one; default a quarter of max_sessions, at least 2
	ResumeWindow time.Duration `conf:"resume_window" default:"2m" min:"1s" max:"24h"`   // a session without a socket is kept for
	KeepAlive    time.Duration `conf:"keep_alive" default:"10s" min:"1s" max:"1h"`      // a socket that is silent for so long, although asked, is replaced
}

// TunnelPeer is a gateway that may connect to a tunnel listener, by the name it uses.
type TunnelPeer struct {
	Name      string   `conf:"-"`
	Keys      []Secret `conf:"keys" maxlen:"16"`                // its own, any of which is good; nobody without one may use the name. Empty: the listener's PSK, or a certificate
	Upstreams []string `conf:"upstreams" maxlen:"1000"`         // what this peer may name, beside the listener's
	Allow     []string `conf:"allow" type:"rule" maxlen:"1000"` // what this peer may have dialled, beside the listener's
}

// SendProxy is the PROXY protocol version written to backends.
type SendProxy string

func (SendProxy) values() []string { return []string{"off", "v1", "v2"} }

// Version returns 0, 1 or 2.
func (s SendProxy) Version() int {
	switch s {
	case "v1":
		return 1
	case "v2":
		return 2
	}
	return 0
}

// Upstream is a named set of endpoints, each with its own pool.
type Upstream struct {
	Name           string            `conf:"-" type:"name"`
	Endpoints      []string          `conf:"endpoints" required:"true" type:"endpoint" maxlen:"1000"` // host:port, unix:/path, or one sqlite:/path alone
	Balance        Balance           `conf:"balance" default:"p2c"`
	ConnectTimeout time.Duration     `conf:"connect_timeout" default:"5s" min:"1ms" max:"10m"`
	TLS            *ClientTLS        `conf:"tls"`    // nil: clear text
	Health         *Health           `conf:"health"` // nil: no active check
	Eject          Eject             `conf:"eject"`
	Pool           Pool              `conf:"pool"`
	Postgres       *PostgresUpstream `conf:"postgres"`
	File           *SQLiteFile       `conf:"sqlite"`
	Tunnel         string            `conf:"tunnel"` // the endpoints are dialled by the other side of this tunnel

	Protocol Protocol `conf:"-"` // of the listeners that use it; tcp when none does
}

// SQLiteFile is what holds for an upstream that is a SQLite file.
type SQLiteFile struct {
	MaxMemoryMiB int `conf:"max_memory_mib" default:"512" min:"16" max:"1048576"` // of all statements together; a value may take a fourth of it
}

// Balance is how an endpoint is picked.
type Balance string

func (Balance) values() []string { return []string{"p2c", "round_robin", "ring_hash", "first"} }

// ClientTLS is how an upstream's connections are encrypted.
type ClientTLS struct {
	CA                 Path   `conf:"ca"`          // PEM; empty: the system's roots
	ServerName         string `conf:"server_name"` // empty: the endpoint's host
	Verify             Verify `conf:"verify" default:"full"`
	InsecureSkipVerify bool   `conf:"insecure_skip_verify"`
	Cert               Path   `conf:"cert"` // client certificate, with Key
	Key                Path   `conf:"key"`
}

// Verify is what of a server's certificate is checked: everything, or not its name.
type Verify string

func (Verify) values() []string { return []string{"full", "ca"} }

// Health is an upstream's active check: exactly one of HTTP, TCP and Postgres is set.
type Health struct {
	HTTP     string        `conf:"http"` // path of a GET that must answer 2xx or 3xx
	TCP      bool          `conf:"tcp"`  // a connection must open
	Postgres bool          `conf:"postgres"`
	Interval time.Duration `conf:"interval" default:"2s" min:"10ms" max:"24h"`
	Timeout  time.Duration `conf:"timeout" default:"1s" min:"1ms" max:"10m"`
	Rise     int           `conf:"rise" default:"2" min:"1" max:"1000"` // successes until healthy
	Fall     int           `conf:"fall" default:"3" min:"1" max:"1000"` // failures until unhealthy
}

// Eject is an upstream's passive check: consecutive failures put an endpoint out for Base, doubling up to Max.
type Eject struct {
	Failures int           `conf:"failures" default:"5" min:"0" max:"1000000"` // 0: off
	Base     time.Duration `conf:"base" default:"1s" min:"1ms" max:"24h"`
	Max      time.Duration `conf:"max" default:"1m" min:"1ms" max:"24h"`
}

// Pool is the limits of each endpoint's pool; see pool.Limits. Where the default says "by protocol", it is, for postgres, http, tcp and
// SQLite files: max_size 20, 1024, 10000, 4 (readers); idle_timeout 5m, 60s, 5m, 5m; max_lifetime never, never, 20s (how long a connection
// that nobody has used yet is kept ready), never; check_after 1s, never, never, 1s; check_interval never, never, 1s, never.
type Pool struct {
	MinIdle        int           `conf:"min_idle" min:"0" max:"1000000"`
	MaxSize        int           `conf:"max_size" min:"1" max:"1000000"`                  // by protocol
	MaxIdle        int           `conf:"max_idle" min:"0" max:"1000000"`                  // default max_size
	IdleTimeout    time.Duration `conf:"idle_timeout" min:"1ms" max:"8760h" never:"-1ns"` // by protocol
	MaxLifetime    time.Duration `conf:"max_lifetime" min:"1ms" max:"8760h" never:"0s"`   // by protocol
	AcquireTimeout time.Duration `conf:"acquire_timeout" default:"5s" min:"1ms" max:"24h" never:"0s"`
	MaxWaiters     int           `conf:"max_waiters" default:"10000" min:"0" max:"10000000"` // 0: unlimited
	CheckAfter     time.Duration `conf:"check_after" min:"1ms" max:"24h" never:"-1ns"`       // by protocol
	CheckInterval  time.Duration `conf:"check_interval" min:"10ms" max:"24h" never:"0s"`     // by protocol
	Overflow       Overflow      `conf:"overflow" default:"wait"`
}

// Overflow is what a full pool does with one more request.
type Overflow string

// What a full pool does.
const (
	OverflowWait   Overflow = "wait"   // queue
	OverflowDirect Overflow = "direct" // open a connection outside the pool
)

func (Overflow) values() []string { return []string{"wait", "direct"} }

// PostgresUpstream is how the gateway logs in to a PostgreSQL server.
type PostgresUpstream struct {
	User     string `conf:"user"`
	Password Secret `conf:"password"`
	DBName   string `conf:"dbname"` // empty: User
	// Params are settings of every connection to the server, such as statement_timeout; a client's own win.
	Params []Param `conf:"params" key:"Name" scalar:"Value" maxlen:"100"`
}

// Param is a PostgreSQL setting.
type Param struct {
	Name  string `conf:"-"`
	Value string `conf:"value" required:"true"`
}

// Tunnel is a way to another gateway, one that this gateway connects to (Connect), or one that a peer of a tunnel listener has made
// (Listener and Peer, and nothing else).
type Tunnel struct {
	Name         string        `conf:"-" type:"name"`
	Connect      []string      `conf:"connect" type:"address" single:"true" maxlen:"16"` // the other gateway's tunnel listener, or those of several that are tried in turn
	Listener     string        `conf:"listener"`                                         // a tunnel listener of this gateway
	Peer         string        `conf:"peer" type:"name"`                                 // the name a peer connects to Listener with
	As           string        `conf:"as" type:"name"`                                   // this gateway's name there; empty: what its certificate says
	TLS          *ClientTLS    `conf:"tls"`                                              // nil: clear text
	PSK          Secret        `conf:"psk"`                                              // at least 16 bytes
	Sessions     int           `conf:"sessions" default:"1" min:"1" max:"64"`            // sockets kept
	Upstreams    []string      `conf:"upstreams" maxlen:"1000"`                          // what the other side may name here
	Allow        []string      `conf:"allow" type:"rule" maxlen:"1000"`                  // what the other side may have dialled here
	DialTimeout  time.Duration `conf:"dial_timeout" default:"5s" min:"1ms" max:"10m"`    // connecting to one of these
	MaxStreams   int           `conf:"max_streams" default:"1024" min:"1" max:"8192"`    // connections the other side may have open here
	ResumeWindow time.Duration `conf:"resume_window" default:"2m" min:"1s" max:"24h"`    // a session without a socket is kept for
	KeepAlive    time.Duration `conf:"keep_alive" default:"10s" min:"1s" max:"1h"`       // a socket that is silent for so long, although asked, is replaced
}

// Path is a file's name; a relative one is taken from the folder of the configuration file.
type Path string

// Mark returns where the field that ptr points to (a pointer into c, for instance &c.Upstreams[0].Endpoints) stands in the file,
// for problems that show only when the configuration is used. The position is the file alone when the field was not written.
func (c *Config) Mark(ptr any) Position {
	pos := c.marks[ptr]
	pos.File = c.File
	return pos
}

// Upstream returns the upstream of that name, or nil.
func (c *Config) Upstream(name string) *Upstream {
	for i := range c.Upstreams {
		if c.Upstreams[i].Name == name {
			return &c.Upstreams[i]
		}
	}
	return nil
}

// Tunnel returns the tunnel of that name, or nil.
func (c *Config) Tunnel(name string) *Tunnel {
	for i := range c.Tunnels {
		if c.Tunnels[i].Name == name {
			return &c.Tunnels[i]
		}
	}
	return nil
}

// SQLite returns the database file's path when the upstream is one.
func (u *Upstream) SQLite() (path string, ok bool) {
	if len(u.Endpoints) == 1 && len(u.Endpoints[0]) > len(sqlitePrefix) && u.Endpoints[0][:len(sqlitePrefix)] == sqlitePrefix {
		return u.Endpoints[0][len(sqlitePrefix):], true
	}
	return "", false
}

const sqlitePrefix = "sqlite:"
