package protocols

import (
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// ChannelBinding says whether SCRAM uses channel binding, with the values of libpq's parameter.
type ChannelBinding string

// The values of ChannelBinding.
const (
	BindingDisable ChannelBinding = "disable"
	BindingPrefer  ChannelBinding = "prefer"
	BindingRequire ChannelBinding = "require"
)

// Values implements config.Enum.
func (ChannelBinding) Values() []string { return []string{"disable", "prefer", "require"} }

var channelBindings = map[ChannelBinding]pgproxy.ChannelBinding{
	BindingDisable: pgproxy.BindingDisable, BindingPrefer: pgproxy.BindingPrefer, BindingRequire: pgproxy.BindingRequire,
}

// checkChannelBinding reports a channel_binding of a listener that cannot work.
func checkChannelBinding(c *config.Checker, l *config.Listener, pg *PostgresListener) {
	at := &pg.ChannelBinding
	switch {
	case l.TLS == nil && *at == BindingRequire:
		c.Report(c.Mark(at), "channel_binding: require needs TLS; give the listener \"tls\" with \"cert\" and \"key\"")
	case l.TLS == nil && c.Written(at):
		c.Warn(c.Mark(at), "channel_binding: has no effect without \"tls\" of the listener")
	case *at == BindingRequire && pg.Auth != AuthSCRAM && pg.Auth != AuthRules && pg.Auth != "":
		c.Report(c.Mark(at), "channel_binding: require needs auth: scram-sha-256; it is %s", pg.Auth)
	case *at == BindingRequire:
		for _, files := range l.TLS.Pairs() {
			pair, err := config.KeyPair(files.Cert, files.Key) // an error is reported with the files
			if err == nil && pair.Leaf != nil && pgwire.EndPointBinding(pair.Leaf) == nil {
				c.Report(c.Mark(at), "channel_binding: require does not work with the certificate %q: its signature, %s, has no hash function", string(files.Cert), pair.Leaf.SignatureAlgorithm)
			}
		}
	}
}

// checkServerBinding reports a channel_binding of an upstream that cannot work.
func checkServerBinding(c *config.Checker, u *config.Upstream, pg *PostgresUpstream) {
	at := &pg.ChannelBinding
	switch {
	case u.TLS == nil && *at == BindingRequire:
		c.Report(c.Mark(at), "channel_binding: require needs TLS; give the upstream \"tls\"")
	case u.TLS == nil && c.Written(at):
		c.Warn(c.Mark(at), "channel_binding: has no effect without \"tls\" of the upstream")
	}
}
