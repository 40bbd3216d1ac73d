package pgtest

// Auth is how the server checks passwords of TCP clients; the Unix socket always trusts.
type Auth string

// Authentication methods.
const (
	Trust Auth = "trust"         // no password; the default
	MD5   Auth = "md5"           // passwords are stored and asked for as MD5
	SCRAM Auth = "scram-sha-256" // passwords are stored and asked for as SCRAM-SHA-256
)

// Option changes how a cluster is started.
type Option func(*options)

type options struct {
	auth     Auth
	tls      bool
	hba      []string
	settings [][2]string
}

// WithAuth makes TCP clients authenticate. The superuser's password is [Cluster.Password].
func WithAuth(a Auth) Option { return func(o *options) { o.auth = a } }

// WithSetting sets a parameter of postgresql.conf; the value is quoted for you.
func WithSetting(name, value string) Option {
	return func(o *options) { o.settings = append(o.settings, [2]string{name, value}) }
}

// WithHBA puts lines of pg_hba.conf before ours, so that they win.
func WithHBA(lines ...string) Option {
	return func(o *options) { o.hba = append(o.hba, lines...) }
}

// WithTLS makes the server accept TLS with a self-signed certificate for 127.0.0.1 and localhost:
// see [Cluster.CAFile]. Plain connections stay possible.
func WithTLS() Option { return func(o *options) { o.tls = true } }
