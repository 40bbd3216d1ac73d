package protocols

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jwt"
)

// BearerAuth asks clients for an API key or a token; see httpproxy.BearerAuth. The file may have just the path of the keys instead
// of a mapping.
type BearerAuth struct {
	Keys       config.Path `conf:"keys" reread:"true"`         // lines that "headpond apikey" prints; empty: none
	JWT        *JWT        `conf:"jwt"`                        // nil: no tokens
	Realm      string      `conf:"realm" default:"restricted"` // what clients show
	UserHeader string      `conf:"user_header"`                // in which the backend gets the name of the user
	Forward    bool        `conf:"forward_credentials"`        // send the key or token on
}

// JWT says which tokens are accepted; see httpproxy.JWT.
type JWT struct {
	Issuer    string        `conf:"issuer" required:"true"`
	Audiences []string      `conf:"audiences" maxlen:"32"`         // empty: any
	JWKSURL   string        `conf:"jwks_url"`                      // empty: as the issuer says
	JWKSFile  config.Path   `conf:"jwks_file" reread:"true"`       // in place of JWKSURL
	CA        config.Path   `conf:"ca"`                            // of the issuer's certificate; empty: the system's roots
	UserClaim string        `conf:"user_claim" default:"sub"`      // with the user's name
	Leeway    time.Duration `conf:"leeway" default:"30s" max:"1h"` // for clocks that differ
	Require   []Match       `conf:"require" key:"Name" scalar:"Value" maxlen:"32"`
	Headers   []Match       `conf:"headers" key:"Name" scalar:"Value" maxlen:"32"` // header: claim
}

// NewAPIKey returns a new key, and the line of a file of keys that gives it to user; see httpproxy.NewAPIKey.
func NewAPIKey(user string) (key, line string, err error) { return httpproxy.NewAPIKey(user) }

// fileAge is the age at which a file of keys is read again.
const fileAge = time.Second

// keysOf reads files of API keys. Routes with the same file share its content.
type keysOf map[config.Path]*httpproxy.APIKeys

func (all keysOf) settings(b *BearerAuth, g extend.Gateway) (*httpproxy.BearerAuth, error) {
	if b == nil {
		return nil, nil
	}
	out := &httpproxy.BearerAuth{Realm: b.Realm, UserHeader: b.UserHeader, Forward: b.Forward}
	if b.Keys != "" {
		if out.Keys = all[b.Keys]; out.Keys == nil {
			var err error
			if out.Keys, err = httpproxy.NewAPIKeys(string(b.Keys), b.Keys.Read, g.Logger()); err != nil {
				return nil, fmt.Errorf("bearer_auth: %w", err)
			}
			all[b.Keys] = out.Keys
		}
	}
	var err error
	if out.JWT, err = b.JWT.settings(g.Logger()); err != nil {
		return nil, fmt.Errorf("bearer_auth: jwt: %w", err)
	}
	return out, nil
}

func (j *JWT) settings(logger *slog.Logger) (*httpproxy.JWT, error) {
	if j == nil {
		return nil, nil
	}
	out := &httpproxy.JWT{Issuer: j.Issuer, Audiences: j.Audiences, UserClaim: j.UserClaim, Leeway: j.Leeway, Require: matchesOf(j.Require), Logger: logger}
	for _, m := range j.Headers {
		out.Headers = append(out.Headers, httpproxy.HeaderField{Name: m.Name, Value: m.Value})
	}
	if j.JWKSFile != "" {
		out.Source, out.Refresh = string(j.JWKSFile), fileAge
		out.ReadKeys = func(context.Context) ([]byte, error) { return j.JWKSFile.Read() }
		return out, nil
	}
	tls, err := extend.ClientTLS(&config.ClientTLS{CA: j.CA})
	if err != nil {
		return nil, err
	}
	client := jwt.NewClient(&http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tls, ForceAttemptHTTP2: true})
	source := jwt.FromIssuer(client, j.Issuer)
	if out.Source = j.Issuer; j.JWKSURL != "" {
		out.Source, source = j.JWKSURL, jwt.FromURL(client, j.JWKSURL)
	}
	if j.CA != "" { // routes with other authorities have keys of their own
		out.Source += " (ca: " + string(j.CA) + ")"
	}
	out.ReadKeys, out.Refresh = source.Read, source.Every
	return out, nil
}

// checkBearer reports problems of a route that asks for a key or a token.
func checkBearer(c *config.Checker, l *config.Listener, r *Route) {
	b := r.BearerAuth
	if b == nil || !c.NoProblemAt(&r.BearerAuth, &b.Keys) {
		return
	}
	if r.BasicAuth != nil || r.ForwardAuth != nil {
		c.Report(c.Mark(&r.BearerAuth), "bearer_auth: the route has \"basic_auth\" or \"forward_auth\" already")
	}
	if b.Keys == "" && b.JWT == nil {
		c.Report(c.Mark(&r.BearerAuth), "bearer_auth: nothing is accepted; give it \"keys\", a file that \"headpond apikey\" writes, or \"jwt\"")
	}
	if b.Keys != "" {
		if text, err := b.Keys.Read(); err != nil {
			c.Report(c.Mark(&b.Keys, &r.BearerAuth), "keys: %v", err)
		} else if err := httpproxy.CheckAPIKeys(string(b.Keys), text); err != nil {
			c.Report(c.Mark(&b.Keys, &r.BearerAuth), "keys: %v", err)
		}
	}
	checkRealm(c, &b.Realm)
	checkUserHeader(c, r, &b.UserHeader)
	if l.TLS == nil && !config.Loopback(l.Listen) && len(l.TrustedProxies) == 0 {
		c.Warn(c.Mark(&r.BearerAuth), "bearer_auth: keys pass unencrypted, because this listener has no \"tls\"")
	}
	if b.JWT != nil {
		checkJWT(c, r, b)
	}
}

func checkJWT(c *config.Checker, r *Route, b *BearerAuth) {
	j := b.JWT
	if j.Issuer == "" || !c.NoProblemAt(&j.Issuer, &j.JWKSURL, &j.JWKSFile, &j.CA) {
		return // reported
	}
	c.ClientFiles(&j.CA, new(config.Path), new(config.Path))
	switch {
	case j.JWKSFile != "" && j.JWKSURL != "":
		c.Report(c.Mark(&j.JWKSFile), "jwks_file: the keys are already from \"jwks_url\"")
	case j.JWKSFile != "":
		if text, err := j.JWKSFile.Read(); err != nil {
			c.Report(c.Mark(&j.JWKSFile), "jwks_file: %v", err)
		} else if err := jwt.CheckKeys(text); err != nil {
			c.Report(c.Mark(&j.JWKSFile), "jwks_file: %v", err)
		}
	case j.JWKSURL != "":
		checkKeysURL(c, &j.JWKSURL, "jwks_url", j.JWKSURL, "")
	default:
		checkKeysURL(c, &j.Issuer, "issuer", j.Issuer, `, from which the keys are asked; or write "jwks_url" or "jwks_file"`)
	}
	if len(j.Audiences) == 0 {
		c.Warn(c.Mark(j, &b.JWT), "jwt: without \"audiences\" tokens that the issuer has made for other services are accepted, too")
	}
	for i := range j.Headers {
		m := &j.Headers[i]
		if err := httpproxy.CheckIdentityHeader(m.Name); err != nil {
			c.Report(c.Mark(&m.Name), "headers: %v", err)
		}
		same := func(earlier Match) bool { return httpproxy.SameHeader(m.Name, earlier.Name) }
		if httpproxy.SameHeader(m.Name, b.UserHeader) || slices.ContainsFunc(j.Headers[:i], same) {
			c.Report(c.Mark(&m.Name), "headers: %s is there twice", config.Clip(m.Name))
		}
		checkWrittenOnce(c, r, m.Name)
	}
}

// checkKeysURL reports problems of a URL that keys are from.
func checkKeysURL(c *config.Checker, field *string, key, url, more string) {
	if err := jwt.CheckURL(url); err != nil {
		c.Report(c.Mark(field), "%s: %v%s", key, err, more)
		return
	}
	host, plain := strings.CutPrefix(url, "http://")
	host, _, _ = strings.Cut(host, "/")
	if !strings.Contains(host, ":") {
		host += ":80"
	}
	if plain && !config.Loopback(host) {
		c.Warn(c.Mark(field), "%s: the keys pass unprotected: who can change them on the way can make tokens; use https", key)
	}
}

// checkRealm reports a realm that cannot be sent.
func checkRealm(c *config.Checker, realm *string) {
	if strings.ContainsAny(*realm, `"\`) || !httpwire.ValidValue(*realm) || len(*realm) > 256 {
		c.Report(c.Mark(realm), "realm: %q: want up to 256 bytes without quotes and backslashes", config.Clip(*realm))
	}
}

// checkUserHeader reports a header that cannot have the user's name; empty: none.
func checkUserHeader(c *config.Checker, r *Route, name *string) {
	if *name == "" {
		return
	}
	if err := httpproxy.CheckIdentityHeader(*name); err != nil {
		c.Report(c.Mark(name), "user_header: %v; a usual name is X-Remote-User", err)
	}
	checkWrittenOnce(c, r, *name)
}
