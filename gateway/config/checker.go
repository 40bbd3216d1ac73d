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

// Report adds a problem, with which the file cannot be used.
func (c *Checker) Report(at Position, format string, args ...any) { c.d.report(at, format, args...) }

// Warn adds a problem with which the file can be used all the same.
func (c *Checker) Warn(at Position, format string, args ...any) { c.d.warn(at, format, args...) }

// NoProblemAt reports whether none of the fields has a problem yet, so that one cause is not reported twice.
func (c *Checker) NoProblemAt(fields ...any) bool { return c.d.noProblemAt(fields...) }

// Unknown reports a name that nothing of a kind has, with the known one that is closest to it.
func (c *Checker) Unknown(at Position, kind, name string, known []string) {
	c.d.unknown(at, kind, name, known)
}

// Reference checks that an upstream exists and is used by one protocol only, and notes which. The field has its name; the alternatives are
// where the problem is reported if that was not written.
func (c *Checker) Reference(protocol Protocol, field *string, alternatives ...any) {
	c.d.reference(c.Config, protocol, field, alternatives...)
}

// Each checks things with names, one after the other, in their scope.
func Each[T any](c *Checker, kind string, all []T, name func(*T) string, check func(*T)) {
	for i := range all {
		c.d.within(kind, name(&all[i]), i, func() { check(&all[i]) })
	}
}

// ClientTLS checks the settings of connections that are made.
func (c *Checker) ClientTLS(t *ClientTLS) { c.d.checkClientTLS(&Upstream{TLS: t}) }

// ClientFiles checks the files of connections over TLS that are not an upstream's: the authority that is trusted, and a client's certificate
// with its key.
func (c *Checker) ClientFiles(ca, cert, key *Path) { c.d.checkClientFiles(ca, cert, key) }

// Addresses checks the lists "allow" and "deny" of addresses of clients that may "connect", "use the route" or what may says.
func (c *Checker) Addresses(allow, deny *[]netip.Prefix, may string) {
	c.d.checkAddresses(allow, deny, may)
}

// Name checks the form of a name.
func (c *Checker) Name(field *string) {
	if err := checkName(*field); err != nil || *field == "" {
		c.Report(c.Mark(field), "name: %q: want letters, digits, \"-\", \"_\" and \".\", at most %d", Clip(*field), maxName)
	}
}

// CheckName returns the problem of a name of an upstream, a listener or the like, "" if there is
// none.
func CheckName(name string) error { return checkName(name) }

// Clip shortens text that is quoted in a message.
func Clip(s string) string { return clip(s) }
