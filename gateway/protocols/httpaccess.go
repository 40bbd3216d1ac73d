package protocols

import (
	"fmt"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpproxy"
)

// BasicAuth asks clients for a name and a password; see httpproxy.BasicAuth. The file may have just the path instead of
// a mapping.
type BasicAuth struct {
	File       config.Path `conf:"file" required:"true"`       // of htpasswd -B
	Realm      string      `conf:"realm" default:"restricted"` // what clients show
	UserHeader string      `conf:"user_header"`                // in which the backend gets the name of the user
	Forward    bool        `conf:"forward_credentials"`        // send Authorization on
}

// usersOf reads files of users. Routes with the same file share its content.
type usersOf map[config.Path]*httpproxy.Users

func (all usersOf) settings(b *BasicAuth, g extend.Gateway) (*httpproxy.BasicAuth, error) {
	if b == nil {
		return nil, nil
	}
	users := all[b.File]
	if users == nil {
		var err error
		if users, err = httpproxy.NewUsers(string(b.File), b.File.Read, g.Logger()); err != nil {
			return nil, fmt.Errorf("basic_auth: %w", err)
		}
		all[b.File] = users
	}
	return &httpproxy.BasicAuth{Users: users, Realm: b.Realm, UserHeader: b.UserHeader, Forward: b.Forward}, nil
}

// httpFiles lists the files of users, keys and error pages.
func httpFiles(l *config.Listener) []config.Path {
	files := pageFiles(config.SectionOf[HTTPListener](l))
	for _, r := range config.SectionOf[HTTPListener](l).Routes {
		if r.BasicAuth != nil {
			files = append(files, r.BasicAuth.File)
		}
		if b := r.BearerAuth; b != nil {
			files = append(files, b.Keys)
			if b.JWT != nil {
				files = append(files, b.JWT.JWKSFile, b.JWT.CA)
			}
		}
	}
	return files
}

// checkAccess reports problems of who may use a route.
func checkAccess(c *config.Checker, l *config.Listener, r *Route) {
	c.Addresses(&r.Allow, &r.Deny, "use the route")
	if strings.HasPrefix(l.Listen, "unix:") && !l.AcceptProxy && len(r.Allow)+len(r.Deny) > 0 {
		c.Report(c.Mark(&r.Allow, &r.Deny), "allow and deny: clients of a unix socket have no address, unless a PROXY header (accept_proxy) has it")
	}
	b := r.BasicAuth
	if b == nil || !c.NoProblemAt(&r.BasicAuth, &b.File) {
		return
	}
	if b.File != "" {
		if err := readUsers(b.File); err != nil {
			c.Report(c.Mark(&b.File, &r.BasicAuth), "file: %v", err)
		}
	}
	checkRealm(c, &b.Realm)
	checkUserHeader(c, r, &b.UserHeader)
	if l.TLS == nil && !config.Loopback(l.Listen) && len(l.TrustedProxies) == 0 {
		c.Warn(c.Mark(&r.BasicAuth), "basic_auth: passwords pass unencrypted, because this listener has no \"tls\"")
	}
}

// readUsers reads a file of users.
func readUsers(file config.Path) error {
	text, err := file.Read()
	if err != nil {
		return err
	}
	return httpproxy.CheckUsers(string(file), text)
}

// checkWrittenOnce reports request_headers rules that write a header with which the gateway itself tells the backend
// who the client is.
func checkWrittenOnce(c *config.Checker, r *Route, name string) {
	if r.RequestHeaders == nil {
		return
	}
	for _, list := range [][]Match{r.RequestHeaders.Set, r.RequestHeaders.Add} {
		for i := range list {
			if httpproxy.SameHeader(list[i].Name, name) {
				c.Report(c.Mark(&list[i].Name), "request_headers: %s: the gateway writes this header itself, because of who the client is", config.Clip(name))
			}
		}
	}
}
