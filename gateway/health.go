package gateway

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/upstream"
)

// healthOf translates the active check. The check of PostgreSQL is made by its backend.
func (g *Gateway) healthOf(u *config.Upstream, dial upstream.DialFunc) (upstream.Health, error) {
	c := u.Health
	if c == nil {
		return upstream.Health{}, nil
	}
	h := upstream.Health{Interval: c.Interval, Timeout: c.Timeout, Rise: c.Rise, Fall: c.Fall, Stagger: max(c.Stagger, 1)}
	switch c.OnUnhealthy {
	case config.CloseUnhealthy:
		h.OnUnhealthy = upstream.CloseUnhealthy
	case config.DrainUnhealthy:
		h.OnUnhealthy, h.UnhealthyTimeout = upstream.DrainUnhealthy, u.RemovedTimeout
	}
	switch {
	case c.HTTP != "" || c.HTTPS != "":
		check, err := g.httpCheck(u, dial)
		if err != nil {
			return h, err
		}
		h.Probe = check.Probe()
	case c.GRPC:
		check, err := g.grpcCheck(u, dial)
		if err != nil {
			return h, err
		}
		h.Probe = check.Probe()
	case c.TCP:
		h.Probe = upstream.TCPProbeBy(dial)
	}
	if c.Port != 0 && h.Probe != nil {
		h.Probe = upstream.ProbePort(h.Probe, c.Port)
	}
	return h, nil
}

func (g *Gateway) httpCheck(u *config.Upstream, dial upstream.DialFunc) (upstream.HTTPCheck, error) {
	c := u.Health
	check := upstream.HTTPCheck{Path: c.HTTP, Host: cmp.Or(c.Host, u.SourceHost()), Dial: dial, Expect: c.Expect}
	settings := u.TLS
	if c.Port != 0 {
		settings = nil // the settings are for the upstream's own port
	}
	if c.HTTPS != "" {
		check.Path, settings = c.HTTPS, c.TLS(u)
	}
	var err error
	if check.TLS, err = g.checkTLS(u, settings); err != nil {
		return check, err
	}
	if c.TokenFile != "" {
		check.Token = func() (string, error) { return readToken(c.TokenFile) }
		if _, err := check.Token(); err != nil {
			return check, err
		}
	}
	return check, nil
}

func (g *Gateway) grpcCheck(u *config.Upstream, dial upstream.DialFunc) (check upstream.GRPCCheck, err error) {
	check = upstream.GRPCCheck{Service: u.Health.Service, Host: cmp.Or(u.Health.Host, u.SourceHost()), Dial: dial}
	if u.Health.Port == 0 { // the settings are for the upstream's own port
		check.TLS, err = g.checkTLS(u, u.TLS)
	}
	return check, err
}

// checkTLS returns how a check gets its TLS settings, nil for clear text.
func (g *Gateway) checkTLS(u *config.Upstream, settings *config.ClientTLS) (func() (*tls.Config, error), error) {
	if settings == nil {
		return nil, nil
	}
	client := &checkTLS{settings: settings, log: g.logger.With("upstream", u.Name)}
	_, err := client.current()
	return client.current, err
}

// checkTLS is the TLS settings of a health check. Their files are read for each probe, because Kubernetes replaces
// certificates without notice.
type checkTLS struct {
	settings *config.ClientTLS
	log      *slog.Logger

	mu    sync.Mutex // guards the fields below
	files extend.Fingerprint
	cfg   *tls.Config // of files; nil before the first call
}

// current returns the settings from the current files. While the files are invalid, perhaps because only one of them
// has been replaced so far, it returns the last valid settings.
func (c *checkTLS) current() (*tls.Config, error) {
	files, err := extend.FingerprintOf(extend.TLSFiles(c.settings)...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.cfg != nil && files == c.files {
		return c.cfg, nil
	}
	var cfg *tls.Config
	if err == nil {
		cfg, err = extend.ClientTLS(c.settings)
	}
	switch {
	case err == nil:
		c.cfg = cfg
	case c.cfg == nil:
		return nil, err
	case files != c.files:
		c.log.Warn("the TLS files of the health check cannot be used; the previous ones stay in use", "error", err)
	}
	c.files = files
	return c.cfg, nil
}

// readToken reads a bearer token. Its errors do not repeat the content of the file.
func readToken(file config.Path) (string, error) {
	data, err := file.Read()
	if err != nil {
		return "", fmt.Errorf("token_file %s: %w", file, err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("token_file %s: %w", file, errNoToken)
	}
	return token, nil
}

var errNoToken = errors.New("want one word of printable ASCII characters")
