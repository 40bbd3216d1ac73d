package haproxycfg_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	_ "github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/proxyconf/haproxycfg"
)

// options read no file of this machine, and know one variable.
var options = haproxycfg.Options{
	Dir:  "/no/such/etc",
	Read: func(string) ([]byte, error) { return nil, fs.ErrNotExist },
	List: func(string) ([]string, error) { return nil, fs.ErrNotExist },
	Env:  func(name string) (string, bool) { return "of the environment", name == "KNOWN" },
}

// checked converts a configuration, and checks the result as `headpond check` does, but for files that are not there.
func checked(text string) (*proxyconf.Gateway, *config.Config, error) {
	g, err := haproxycfg.Convert("haproxy.cfg", []byte(text), options)
	if err != nil {
		return nil, nil, err
	}
	cfg, problems := config.Parse("result", g.YAML("haproxy.cfg"))
	if cfg != nil {
		problems = append(problems, gateway.Check(cfg)...)
	}
	var bad []error
	for _, p := range problems {
		if !p.Warning && !strings.Contains(p.Message, "/no/such/etc") {
			bad = append(bad, errors.New(p.String()))
		}
	}
	if len(bad) > 0 {
		return g, cfg, rejected{errors.Join(bad...)}
	}
	return g, cfg, nil
}

// rejected is the error of a result that the gateway does not accept.
type rejected struct{ error }

// FuzzConvert: whatever is read without an error gives a configuration that the gateway accepts.
func FuzzConvert(f *testing.F) {
	for _, c := range directives {
		f.Add(c.config())
	}
	f.Add("frontend f\n mode http\n bind :80\n acl a path_reg -i ^/(a|b).*$\n acl b hdr(host) -m end .x\n http-request deny if a !b || { src 10.0.0.0/8 }\n use_backend b if a b\n default_backend b\nbackend b\n cookie C insert\n server s \"127.0.0.1:80\" check ssl verify none weight 300\n")
	f.Fuzz(func(t *testing.T, text string) {
		g, _, err := checked(text)
		if bad := (rejected{}); errors.As(err, &bad) {
			t.Errorf("%v\n%s", err, g.YAML("haproxy.cfg"))
		}
	})
}
