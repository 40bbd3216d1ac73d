package acme

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caddyserver/certmagic"
	"github.com/miekg/dns"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

func init() {
	extend.RegisterExtension(extend.Extension{New: newPart, Config: config.Extension{File: &FileKeys{}, Check: check, Certifies: checkListener}})
}

// Directories of Let's Encrypt.
const (
	letsEncrypt        = "https://acme-v02.api.letsencrypt.org/directory"
	letsEncryptStaging = "https://acme-staging-v02.api.letsencrypt.org/directory"
)

// FileKeys are the keys at the top of the file.
type FileKeys struct {
	ACME *Settings `conf:"acme"` // nil: no certificates are obtained
}

// Settings is the section "acme": the account at a certificate authority.
type Settings struct {
	Agree     bool        `conf:"agree" required:"true"`   // to the authority's terms of service
	Storage   string      `conf:"storage" required:"true"` // the folder for the account, keys and certificates
	Email     string      `conf:"email"`                   // to which the authority may write; used when the account is made
	Directory string      `conf:"directory"`               // URL; default: Let's Encrypt's
	Staging   string      `conf:"staging"`                 // directory that is tried first after a failure; default: Let's Encrypt's with its directory, else none
	CA        config.Path `conf:"ca"`                      // PEM, authorities for the directory's own certificate; empty: the system's
	KeyType   KeyType     `conf:"key_type" default:"p256"` // of certificates
	EAB       *EAB        `conf:"eab"`                     // the customer whom the account belongs to; nil: none
	DNS       *DNS        `conf:"dns"`                     // nil: the authority connects to the gateway to check names
}

// EAB is an external account binding (RFC 8555, section 7.3.4): what an authority gives to its customers.
type EAB struct {
	KeyID string        `conf:"key_id" required:"true"`
	Key   config.Secret `conf:"hmac_key" required:"true"` // base64url
}

// key returns the key without padding.
func (e *EAB) key() string { return strings.TrimRight(e.Key.Reveal(), "=") }

// DNS is how TXT records are set, by which the authority checks names.
type DNS struct {
	RFC2136   *RFC2136   `conf:"rfc2136"`              // by dynamic updates
	Command   []string   `conf:"command" maxlen:"64"`  // by a program: it and its first arguments
	Resolvers []Resolver `conf:"resolvers" maxlen:"8"` // that are asked for zones and their servers; empty: the machine's
}

// RFC2136 is a name server that takes dynamic updates.
type RFC2136 struct {
	Server    string        `conf:"server" required:"true"`          // host or host:port
	Key       string        `conf:"key"`                             // name of the TSIG key; empty: updates are not signed
	Secret    config.Secret `conf:"secret"`                          // of the key, in base64
	Algorithm Algorithm     `conf:"algorithm" default:"hmac-sha256"` // of the key
}

// Algorithm is that of a TSIG key (RFC 8945, section 6).
type Algorithm string

// Values implements config.Enum.
func (Algorithm) Values() []string {
	return []string{"hmac-sha256", "hmac-sha384", "hmac-sha512", "hmac-sha224", "hmac-sha1"}
}

// Resolver is the address of a name server: an IP address, or one with a port.
type Resolver string

// Check implements config.Checked.
func (Resolver) Check(text string) error {
	if _, err := netip.ParseAddr(text); err == nil {
		return nil
	}
	if a, err := netip.ParseAddrPort(text); err == nil && a.Port() != 0 {
		return nil
	}
	return errors.New("want an IP address, or one with a port, such as 10.0.0.53")
}

// KeyType is the kind of a certificate's key.
type KeyType string

// Values implements config.Enum.
func (KeyType) Values() []string { return []string{"p256", "p384", "rsa2048", "rsa4096"} }

var keyTypes = map[KeyType]certmagic.KeyType{"p256": certmagic.P256, "p384": certmagic.P384, "rsa2048": certmagic.RSA2048, "rsa4096": certmagic.RSA4096}

// settingsOf returns the section of a configuration with all defaults and an absolute storage, nil if there is none.
func settingsOf(cfg *config.Config) *Settings {
	written := config.PartOf[FileKeys](cfg).ACME
	if written == nil {
		return nil
	}
	s := *written
	if s.Directory == "" {
		s.Directory = letsEncrypt
	}
	if s.Staging == "" && s.Directory == letsEncrypt {
		s.Staging = letsEncryptStaging
	}
	if !filepath.IsAbs(s.Storage) {
		s.Storage = filepath.Join(filepath.Dir(cfg.File), s.Storage)
	}
	return &s
}

// check checks the section "acme".
func check(c *config.Checker) {
	s := config.PartOf[FileKeys](c.Config).ACME
	if s == nil {
		return
	}
	if c.Written(&s.Agree) && !s.Agree && c.NoProblemAt(&s.Agree) {
		c.Report(c.Mark(&s.Agree), "agree: the authority gives certificates to those only who agree to its terms of service; read them, and write agree: true")
	}
	if s.Email != "" {
		if a, err := mail.ParseAddress(s.Email); err != nil || a.Address != s.Email {
			c.Report(c.Mark(&s.Email), "email: %q: want an address such as ops@example.com", config.Clip(s.Email))
		}
	}
	checkDirectory(c, "directory", &s.Directory)
	checkDirectory(c, "staging", &s.Staging)
	if s.Storage != "" {
		if info, err := os.Stat(settingsOf(c.Config).Storage); err == nil && !info.IsDir() {
			c.Report(c.Mark(&s.Storage), "storage: %q is a file; want a folder, which is made if it is not there", config.Clip(s.Storage))
		} else if err == nil && info.Mode().Perm()&0o077 != 0 {
			c.Warn(c.Mark(&s.Storage), "storage: other users may look into %q (mode %#o), where private keys are kept; run chmod 700", config.Clip(s.Storage), info.Mode().Perm())
		}
	}
	c.ClientFiles(&s.CA, new(config.Path), new(config.Path))
	if s.EAB != nil {
		if _, err := base64.RawURLEncoding.DecodeString(s.EAB.key()); err != nil {
			c.Report(c.Mark(&s.EAB.Key), "hmac_key: want the key in base64url, as the authority gives it")
		}
	}
	if s.DNS != nil {
		checkDNS(c, s, s.DNS)
	}
	if len(listenersOf(c.Config)) == 0 {
		c.Warn(c.Mark(s), "acme: no listener has \"acme\" under its \"tls\", so no certificate is obtained")
	}
}

func checkDirectory(c *config.Checker, key string, field *string) {
	if *field == "" {
		return
	}
	u, err := url.Parse(*field)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		c.Report(c.Mark(field), "%s: %q: want the URL of an ACME directory, such as %s", key, config.Clip(*field), letsEncrypt)
	case u.Hostname() == "letsencrypt.org" || u.Hostname() == "www.letsencrypt.org":
		c.Report(c.Mark(field), "%s: %q is a page; did you mean %q?", key, config.Clip(*field), letsEncrypt)
	}
}

// checkListener checks a listener with "acme" under its "tls".
func checkListener(c *config.Checker, l *config.Listener) {
	names := &l.TLS.ACME
	if config.PartOf[FileKeys](c.Config).ACME == nil {
		c.Report(c.Mark(names), "acme: the section \"acme\" is missing at the top of the file: {agree: true, storage: FOLDER, email: ADDRESS}")
		return
	}
	if config.PartOf[FileKeys](c.Config).ACME.DNS == nil {
		for i := range *names {
			if name := &(*names)[i]; strings.HasPrefix(string(*name), "*.") {
				c.Report(c.Mark(name, names), "acme: %q: a wildcard needs \"dns\" under \"acme\", by which the authority checks it; or list the names, or use \"cert\" and \"key\"", string(*name))
			}
		}
	}
	if len(challengeTypes(c.Config)) == 0 {
		c.Report(c.Mark(names), "acme: nothing answers the authority when it checks these names; add an http listener without \"tls\","+
			" which the authority reaches at port 80, or an http or tcp listener with \"acme\" and without \"client_ca\", which it reaches at port 443")
	}
}

// checkDNS checks how records are set.
func checkDNS(c *config.Checker, s *Settings, d *DNS) {
	u := d.RFC2136
	switch {
	case u == nil && len(d.Command) == 0:
		c.Report(c.Mark(&s.DNS), "dns: nothing sets records; give it \"rfc2136\", a name server that takes updates, or \"command\", a program")
	case u != nil && len(d.Command) > 0:
		c.Report(c.Mark(&d.Command), "dns: the records are already set by \"rfc2136\"")
	case u == nil:
		if _, err := exec.LookPath(d.Command[0]); err != nil {
			c.Report(c.Mark(&d.Command), "command: %v", err)
		}
		return
	}
	if u == nil {
		return
	}
	if u.Server != "" && !isServer(u.Server) {
		c.Report(c.Mark(&u.Server), "server: %q: want a name or an address, perhaps with a port, such as ns1.example.com", config.Clip(u.Server))
	}
	switch secret := u.Secret.Reveal(); {
	case u.Key == "" && secret != "":
		c.Report(c.Mark(&u.Secret), "secret: \"key\" is missing, the name of the key")
	case u.Key != "" && secret == "":
		c.Report(c.Mark(&u.Key), "key: \"secret\" is missing")
	case u.Key == "":
		c.Warn(c.Mark(&d.RFC2136), "rfc2136: without \"key\" updates are not signed: the server must know the gateway by its address")
	default:
		if _, err := base64.StdEncoding.DecodeString(secret); err != nil {
			c.Report(c.Mark(&u.Secret), "secret: want the key in base64, as tsig-keygen prints it")
		}
		if _, ok := dns.IsDomainName(u.Key); !ok {
			c.Report(c.Mark(&u.Key), "key: %q: want the name of the key", config.Clip(u.Key))
		}
	}
}

// isServer reports whether a text is a name or an address, perhaps with a port.
func isServer(text string) bool {
	host, port, err := net.SplitHostPort(withPort(text))
	if err != nil {
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return false
	}
	_, err = netip.ParseAddr(host)
	_, name := dns.IsDomainName(host)
	return err == nil || host != "" && name && !strings.ContainsAny(host, "/ ")
}

// listenersOf returns the listeners that have names for which certificates are obtained.
func listenersOf(cfg *config.Config) (some []*config.Listener) {
	for i := range cfg.Listeners {
		if l := &cfg.Listeners[i]; l.TLS != nil && len(l.TLS.ACME) > 0 {
			some = append(some, l)
		}
	}
	return some
}

// namesOf returns all names for which certificates are obtained, each once.
func namesOf(cfg *config.Config) map[string]bool {
	names := map[string]bool{}
	for _, l := range listenersOf(cfg) {
		for _, name := range l.TLS.ACME {
			names[string(name)] = true
		}
	}
	return names
}

// challengeTypes returns the kinds of challenge that can be answered: by records of the DNS, or else by listeners, to which an
// authority sends either clear HTTP or a TLS handshake.
func challengeTypes(cfg *config.Config) map[string]bool {
	types := map[string]bool{}
	if s := config.PartOf[FileKeys](cfg).ACME; s != nil && s.DNS != nil {
		types[typeDNS] = true
		return types
	}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		switch protocol := extend.ProtocolOf(l.Protocol); {
		case strings.HasPrefix(l.Listen, "unix:") || protocol == nil:
		case l.TLS == nil:
			if protocol.Config.PlainHTTP {
				types[typeHTTP] = true
			}
		case len(l.TLS.ACME) > 0 && l.TLS.ClientCA == "" && !protocol.Config.TLSWithin:
			types[typeTLS] = true
		}
	}
	return types
}

// rootsOf returns the authorities for a directory's certificate, nil for the system's.
func rootsOf(path config.Path) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // as documented
	}
	pem, err := path.Read()
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem) // check has verified that there is one
	return pool, nil
}
