package config

import "net/netip"

// Checker reports problems of a parsed configuration, for protocols and extensions. Fields are named by pointers to
// them, such as &l.Upstream.
type Checker struct {
	Config *Config
	d      *decoder
}

// Mark returns where a field was written, or else the first of the alternatives that was.
func (c *Checker) Mark(fields ...any) Position { return c.d.mark(fields...) }

// Written reports whether the file has the field.
func (c *Checker) Written(field any) bool { return c.d.written(field) }

// Report adds a problem that makes the file unusable.
func (c *Checker) Report(at Position, format string, args ...any) { c.d.report(at, format, args...) }

// Warn adds a problem with a file that can be used nevertheless.
func (c *Checker) Warn(at Position, format string, args ...any) { c.d.warn(at, format, args...) }

// NoProblemAt reports whether none of the fields has a problem yet, so that one cause is not reported twice.
func (c *Checker) NoProblemAt(fields ...any) bool { return c.d.noProblemAt(fields...) }

// Unknown reports a name that no object of the kind has, with the most similar known name.
func (c *Checker) Unknown(at Position, kind, name string, known []string) {
	c.d.unknown(at, kind, name, known)
}

// Reference checks that an upstream exists and is used by one protocol only, and records the protocol.
// field has the upstream's name. If field was not written, problems are reported at one of the
// alternatives.
func (c *Checker) Reference(protocol Protocol, field *string, alternatives ...any) {
	c.d.reference(c.Config, protocol, field, alternatives...)
}

// Each checks named objects one after the other, each in its scope.
func Each[T any](c *Checker, kind string, all []T, name func(*T) string, check func(*T)) {
	for i := range all {
		c.d.within(kind, name(&all[i]), i, func() { check(&all[i]) })
	}
}

// ClientTLS checks the TLS settings of outgoing connections.
func (c *Checker) ClientTLS(t *ClientTLS) { c.d.checkClientTLS(&Upstream{TLS: t}) }

// ClientFiles checks the TLS files of connections that are not an upstream's: the trusted authority,
// and a client certificate with its key.
func (c *Checker) ClientFiles(ca, cert, key *Path) { c.d.checkClientFiles(ca, cert, key) }

// Addresses checks the lists "allow" and "deny" of clients. may completes messages: "connect", "use
// the route" and so on.
func (c *Checker) Addresses(allow, deny *[]netip.Prefix, may string) {
	c.d.checkAddresses(allow, deny, may)
}

// Name checks the form of a name.
func (c *Checker) Name(field *string) {
	if err := checkName(*field); err != nil || *field == "" {
		c.Report(c.Mark(field), "name: %q: want letters, digits, \"-\", \"_\" and \".\", at most %d", Clip(*field), maxName)
	}
}

// CheckName returns the problem of a name of an upstream, a listener and so on, nil if there is none.
func CheckName(name string) error { return checkName(name) }

// Clip shortens text that is quoted in a message.
func Clip(s string) string { return clip(s) }
