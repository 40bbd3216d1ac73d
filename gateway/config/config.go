package config

import (
	"net/netip"
	"time"

	"github.com/headpond/headpond/upstream"
)

// Config is one configuration file, checked and with its defaults filled in. It is read-only once Load or Parse returned it.
//
// The conf tags are the keys of the file; doc.go describes the other tags.
type Config struct {
	File         string        `conf:"-"`                                                                      // the name that Load or Parse was given
	Admin        string        `conf:"admin" type:"address"`                                                   // admin page address; empty: none
	Engine       Engine        `conf:"engine" default:"auto"`                                                  // default auto
	Loops        int           `conf:"loops" default:"0" min:"0" max:"1024"`                                   // threads that run sessions; default half the cores
	DrainTimeout time.Duration `conf:"drain_timeout" default:"30s" min:"0s" max:"24h" never:"87600h"`          // how long sessions may finish when the gateway ends; default 30s
	HeldWarning  time.Duration `conf:"held_warning" default:"10s" min:"1s" max:"24h" never:"0s"`               // a session that holds a connection for this long while others wait is logged; default 10s
	Log          Log           `conf:"log"`                                                                    //
	Listeners    []Listener    `conf:"listeners" required:"checked" scope:"listener" maxlen:"1000"`            // at least one, unless an Extension suffices
	Upstreams    []Upstream    `conf:"upstreams" required:"checked" key:"Name" scope:"upstream" maxlen:"1000"` // in the order of the file; at least one, if something uses upstreams

	parts []any            // see PartOf
	marks map[any]Position // where each field is written in the file, by the field's address
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

// Values implements Enum.
func (Engine) Values() []string { return []string{"auto", "uring", "epoll", "goroutine"} }

// Log says how the gateway logs to standard error.
type Log struct {
	Format LogFormat `conf:"format" default:"text"` // text (default) or json
	Level  LogLevel  `conf:"level" default:"info"`  // debug, info (default), warn or error
}

// LogFormat is text or json.
type LogFormat string

// Values implements Enum.
func (LogFormat) Values() []string { return []string{"text", "json"} }

// LogLevel is debug, info, warn or error.
type LogLevel string

// Values implements Enum.
func (LogLevel) Values() []string { return []string{"debug", "info", "warn", "error"} }

// Protocol is the protocol of a listener.
type Protocol string

// Protocols that upstreams have settings for.
const (
	TCP      Protocol = "tcp"
	HTTP     Protocol = "http"
	Postgres Protocol = "postgres"
)

// Listener is one address that clients connect to.
type Listener struct {
	Name           string         `conf:"name" required:"true" type:"name"`
	Protocol       Protocol       `conf:"protocol" required:"true"`
	Listen         string         `conf:"listen" required:"true" type:"address"` // host:port or unix:/path
	Socket         *Socket        `conf:"socket"`                                // of unix:/path; nil: the umask's permissions, the gateway's user
	Upstream       string         `conf:"upstream"`                              // where sessions go unless a route or database says otherwise
	TLS            *ServerTLS     `conf:"tls"`                                   // nil: clear text
	MaxConns       int            `conf:"max_conns" default:"10000" min:"1" max:"10000000"`
	MaxQueue       int            `conf:"max_queue" default:"1024" min:"0" max:"10000000"` // connections waiting for the connection limit
	QueueTimeout   time.Duration  `conf:"queue_timeout" default:"5s" min:"1ms" max:"1h"`
	AccessLog      bool           `conf:"access_log"`                    // one log line per session or request
	AcceptProxy    bool           `conf:"accept_proxy"`                  // expect a PROXY v1/v2 header from TrustedProxies
	TrustedProxies []netip.Prefix `conf:"trusted_proxies" maxlen:"1000"` // empty: loopback
	Allow          []netip.Prefix `conf:"allow" maxlen:"1000"`           // clients that may connect; empty: all
	Deny           []netip.Prefix `conf:"deny" maxlen:"1000"`            // exceptions from Allow

	MaxConnsPerSource int             `conf:"max_connections_per_source" default:"0" min:"0" max:"10000000"` // of one client address at once; 0: any number
	ConnectionRate    *ConnectionRate `conf:"connection_rate"`                                               // of one client address; nil: no limit
	KeepAlive         *KeepAlive      `conf:"keep_alive"`                                                    // how vanished clients are detected; nil: after 15 s and 9 probes, or the system's time for an acknowledgement

	Section any `conf:"-"` // the value of the key with the protocol's name; never nil when read from a file
}

// ConnectionRate bounds the connections that a client address may make within a time.
type ConnectionRate struct {
	Connections int           `conf:"connections" required:"true" min:"1" max:"1000000"`
	Per         time.Duration `conf:"per" default:"1s" min:"10ms" max:"1h"`
}

// KeepAlive says how the kernel detects that the peer of a TCP connection has vanished.
type KeepAlive struct {
	Idle        time.Duration `conf:"idle" default:"15s" min:"1s" max:"9h"`                           // silence before the first probe
	Interval    time.Duration `conf:"interval" default:"15s" min:"1s" max:"9h"`                       // between two probes
	Count       int           `conf:"count" default:"9" min:"1" max:"127"`                            // unanswered probes that end the connection
	UserTimeout time.Duration `conf:"tcp_user_timeout" default:"never" min:"1s" max:"24h" never:"0s"` // a connection ends if sent data has no acknowledgement, or no room at the peer, for this long; never: after the system's time
}

// Socket says who may connect to a unix socket.
type Socket struct {
	Mode  string `conf:"mode" type:"mode"`   // octal permissions; empty: by the umask
	Owner string `conf:"owner" type:"owner"` // user or user:group, names or numbers; empty: the gateway's
}

// ServerTLS has the certificates that a listener uses for its clients.
type ServerTLS struct {
	Cert Path `conf:"cert"` // PEM, leaf first; may be missing only with ACME
	Key  Path `conf:"key"`  // PEM
	// ACME are the names whose certificates an Extension obtains (Extension.Certifies). Until such a
	// certificate exists, and for other names, clients get the certificates of files, if there are any.
	ACME []Domain `conf:"acme" single:"true" maxlen:"100"`
	// Certificates are further certificates. A client gets the first, beginning with Cert, that has its
	// server name and a key of a kind that it supports; if there is none, Cert.
	Certificates []Certificate `conf:"certificates" maxlen:"1000"`
	// ClientCA makes a listener, if its protocol supports that, ask for client certificates of one of
	// these authorities; PEM.
	ClientCA Path `conf:"client_ca"`
	// ClientCRL has the revocation lists of all those authorities, PEM or DER. Clients whose certificate is revoked may not
	// connect, and neither may any once the list of their authority has expired.
	ClientCRL Path `conf:"client_crl"`
	// ClientAuth says whether clients must have a certificate. It is empty without ClientCA.
	ClientAuth ClientAuth `conf:"client_auth"`
}

// ClientAuth says which clients of a listener with ClientCA may connect.
type ClientAuth string

// The values of ClientAuth.
const (
	ClientAuthRequire ClientAuth = "require" // only clients with a certificate of the authorities; also the meaning of an empty value
	ClientAuthRequest ClientAuth = "request" // also clients without a certificate
)

// Values implements Enum.
func (ClientAuth) Values() []string { return []string{"require", "request"} }

// Certificate is one certificate with its key.
type Certificate struct {
	Cert Path `conf:"cert" required:"true"` // PEM, leaf first
	Key  Path `conf:"key" required:"true"`  // PEM
}

// Files lists the files of t: certificates, keys, authorities, revocation lists. Those that t does not name are empty.
func (t *ServerTLS) Files() []Path {
	files := []Path{t.Cert, t.Key, t.ClientCA, t.ClientCRL}
	for _, c := range t.Certificates {
		files = append(files, c.Cert, c.Key)
	}
	return files
}

// Pairs lists the certificates of t that are files, the first one for clients that name no server.
func (t *ServerTLS) Pairs() (pairs []Certificate) {
	if t.Cert != "" {
		pairs = append(pairs, Certificate{Cert: t.Cert, Key: t.Key})
	}
	return append(pairs, t.Certificates...)
}

// Upstream is a named set of endpoints, each with its own pool.
type Upstream struct {
	Name           string        `conf:"-" type:"name"`
	Endpoints      []Endpoint    `conf:"endpoints" required:"checked" scalar:"Address" maxlen:"1000"`    // or Discover
	Discover       *Discover     `conf:"discover"`                                                       // nil: the endpoints are Endpoints
	SlowStart      time.Duration `conf:"slow_start" default:"0s" min:"0s" max:"24h"`                     // until an added endpoint has its full share
	OnRemoved      OnRemoved     `conf:"on_removed" default:"drain"`                                     // what happens to connections in use when an endpoint is removed
	RemovedTimeout time.Duration `conf:"drain_timeout" default:"never" min:"1ms" max:"8760h" never:"0s"` // how long they may drain
	Rebalance      *Rebalance    `conf:"rebalance"`                                                      // nil: sessions stay where they are
	Balance        Balance       `conf:"balance" default:"p2c"`
	ConnectTimeout time.Duration `conf:"connect_timeout" default:"5s" min:"1ms" max:"10m"`
	TLS            *ClientTLS    `conf:"tls"`        // nil: clear text
	KeepAlive      *KeepAlive    `conf:"keep_alive"` // how vanished servers are detected; nil: as for clients, but not on this machine for tcp
	Health         *Health       `conf:"health"`     // nil: no active check
	Eject          Eject         `conf:"eject"`
	Pool           Pool          `conf:"pool"`

	Protocol Protocol `conf:"-"` // of the listeners that use it; tcp when none does

	parts []any // see PartOf
}

// Endpoint is one address of an upstream. The file may have just the address instead of a mapping.
type Endpoint struct {
	Address  string `conf:"address" required:"true" type:"endpoint"`  // host:port, unix:/path, or an address of an Extension
	Weight   int    `conf:"weight" default:"1" min:"1" max:"65535"`   // its share beside others of its priority
	Priority int    `conf:"priority" default:"0" min:"0" max:"65535"` // among the working endpoints, those with the lowest number are used
	Zone     string `conf:"zone"`                                     // for information
}

// Discover names the source of the endpoints. Section is the section of the SourceKind with that name.
type Discover struct {
	Kind    string `conf:"-"`
	Section any    `conf:"-"` // a pointer to a struct
}

// OnRemoved says what happens to connections in use when an endpoint is removed.
type OnRemoved string

// The values of OnRemoved.
const (
	DrainRemoved OnRemoved = "drain" // they continue until they are released, or RemovedTimeout is over
	CloseRemoved OnRemoved = "close" // they are closed
)

// Values returns the permitted values.
func (OnRemoved) Values() []string { return []string{"drain", "close"} }

// Rebalance says how sessions move to endpoints that were added or are healthy again.
type Rebalance struct {
	PerMinute int            `conf:"per_minute" default:"30" min:"1" max:"60000"` // limit of sessions closed per minute for rebalancing
	Excess    int            `conf:"excess" default:"20" min:"0" max:"1000"`      // percent that an endpoint may have above its share
	Order     RebalanceOrder `conf:"order" default:"oldest"`                      // which of an endpoint's sessions are closed first
}

// RebalanceOrder says which sessions are closed first for rebalancing.
type RebalanceOrder string

// The values of RebalanceOrder.
const (
	OldestFirst RebalanceOrder = "oldest"
	NewestFirst RebalanceOrder = "newest"
)

// Values returns the permitted values.
func (RebalanceOrder) Values() []string { return []string{"oldest", "newest"} }

// Balance is how an endpoint is picked.
type Balance string

// Values implements Enum.
func (Balance) Values() []string { return upstream.Balances() }

// ClientTLS says how an upstream's connections are encrypted.
type ClientTLS struct {
	CA                 Path   `conf:"ca"`          // PEM; empty: the system's roots
	ServerName         string `conf:"server_name"` // empty: the endpoint's host
	Verify             Verify `conf:"verify" default:"full"`
	InsecureSkipVerify bool   `conf:"insecure_skip_verify"`
	Cert               Path   `conf:"cert"` // client certificate, with Key
	Key                Path   `conf:"key"`
}

// Verify says how a server's certificate is checked: completely, or without its name.
type Verify string

// Values implements Enum.
func (Verify) Values() []string { return []string{"full", "ca"} }

// Health is an upstream's active check: exactly one of HTTP, HTTPS, TCP, GRPC and Postgres is set.
type Health struct {
	HTTP     string `conf:"http"`  // path of a GET, as connections are made for sessions; on another port always in clear text
	HTTPS    string `conf:"https"` // path of a GET over TLS, whatever connections for sessions speak
	TCP      bool   `conf:"tcp"`   // a connection must open
	GRPC     bool   `conf:"grpc"`  // the gRPC health checking protocol, as connections are made for sessions; on another port always in clear text
	Postgres bool   `conf:"postgres"`
	Service  string `conf:"grpc_service"`                         // of GRPC; empty: the server as a whole
	Port     int    `conf:"port" default:"0" min:"0" max:"65535"` // 0: the endpoint's
	Host     string `conf:"host"`                                 // in requests of HTTP, HTTPS and GRPC; empty: that of DNS, or the endpoint's
	// CA, Cert, Key and ServerName are for HTTPS; without any of them the upstream's "tls" is used, if there is one.
	CA         Path          `conf:"ca"`
	Cert       Path          `conf:"cert"`
	Key        Path          `conf:"key"`
	ServerName string        `conf:"server_name"`
	TokenFile  Path          `conf:"token_file" reread:"true"`               // a bearer token for HTTPS
	Expect     []int         `conf:"expect" min:"100" max:"599" maxlen:"50"` // statuses of HTTP and HTTPS; empty: 200 to 399
	Interval   time.Duration `conf:"interval" default:"2s" min:"10ms" max:"24h"`
	Timeout    time.Duration `conf:"timeout" default:"1s" min:"1ms" max:"10m"`
	Rise       int           `conf:"rise" default:"2" min:"1" max:"1000"` // successes until healthy
	Fall       int           `conf:"fall" default:"3" min:"1" max:"1000"` // failures until unhealthy
	// OnUnhealthy says what happens to the sessions of an unhealthy endpoint, for tcp and udp upstreams; empty for others.
	// Stagger is the time over which they are closed.
	OnUnhealthy OnUnhealthy   `conf:"on_unhealthy"`
	Stagger     time.Duration `conf:"stagger" default:"1s" min:"0s" max:"10m"`
}

// OnUnhealthy says what happens to the sessions of an unhealthy endpoint.
type OnUnhealthy string

// The values of OnUnhealthy.
const (
	CloseUnhealthy OnUnhealthy = "close" // they are closed once the endpoint no longer answers
	DrainUnhealthy OnUnhealthy = "drain" // they are closed when the upstream's RemovedTimeout is over
	KeepUnhealthy  OnUnhealthy = "keep"  // they continue
)

// Values implements Enum.
func (OnUnhealthy) Values() []string { return []string{"close", "drain", "keep"} }

// TLS returns the settings of an HTTPS check of an upstream.
func (h *Health) TLS(u *Upstream) *ClientTLS {
	if h.CA == "" && h.Cert == "" && h.ServerName == "" && u.TLS != nil {
		return u.TLS
	}
	return &ClientTLS{CA: h.CA, Cert: h.Cert, Key: h.Key, ServerName: h.ServerName, Verify: "full"}
}

// Eject is an upstream's passive check: consecutive failures put an endpoint out for Base, doubling up to Max.
type Eject struct {
	Failures int           `conf:"failures" default:"5" min:"0" max:"1000000"` // 0: off
	Base     time.Duration `conf:"base" default:"1s" min:"1ms" max:"24h"`
	Max      time.Duration `conf:"max" default:"1m" min:"1ms" max:"24h"`
	// ServerErrors and SlowerThan count answers as failures, of http upstreams only.
	ServerErrors bool          `conf:"server_errors"`                                              // answers with status 500 to 599, except 501 and 505
	SlowerThan   time.Duration `conf:"slower_than" default:"never" min:"1ms" max:"24h" never:"0s"` // from the request to the response's header
	MaxEjected   int           `conf:"max_ejected" default:"50" min:"1" max:"100"`                 // percent of the endpoints, after an answer has ejected one
}

// Pool has the limits of each endpoint's pool; see pool.Limits. Where the default is "by protocol",
// ListenerProtocol.Pool has it.
type Pool struct {
	MinIdle        int           `conf:"min_idle" min:"0" max:"1000000"`
	MaxWarm        int           `conf:"max_warm" min:"0" max:"1000000"`                  // by protocol; MinIdle if the number of connections kept ready is fixed
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

// Warm returns the key, and its field, that has connections opened ahead of demand; "" if there is none.
func (p *Pool) Warm() (key string, field *int) {
	switch {
	case p.MinIdle > 0:
		return "min_idle", &p.MinIdle
	case p.MaxWarm > 0:
		return "max_warm", &p.MaxWarm
	}
	return "", nil
}

// Overflow says what a full pool does with another request.
type Overflow string

// What a full pool does.
const (
	OverflowWait   Overflow = "wait"   // queue
	OverflowDirect Overflow = "direct" // open a connection outside the pool
)

// Values implements Enum.
func (Overflow) Values() []string { return []string{"wait", "direct"} }

// Path is a file's name; a relative one is taken from the folder of the configuration file.
type Path string

// LogPath is the name of a file to write to; a relative one is taken from the folder of the
// configuration file. "-" is standard output.
type LogPath string

// Mark returns where a field is written in the file, for problems that show only when the
// configuration is used. ptr points to the field in c, for instance &c.Upstreams[0].Endpoints. If the
// field was not written, the position is the file alone.
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
