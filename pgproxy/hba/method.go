package hba

import (
	"fmt"
	"slices"
)

// Method is how a client authenticates.
type Method uint8

// The methods.
const (
	SCRAM    Method = iota // scram-sha-256: a password that is not sent
	MD5                    // the same, by an md5 secret or a SCRAM secret
	Password               // a password in clear text
	Trust                  // nothing
	Reject                 // the client is refused
	Cert                   // a client certificate with the user's name
	Peer                   // the operating system's user at the other end of a Unix socket
)

var methodNames = [...]string{SCRAM: "scram-sha-256", MD5: "md5", Password: "password", Trust: "trust", Reject: "reject", Cert: "cert", Peer: "peer"}

// Methods are the names of all methods.
func Methods() []string { return slices.Clone(methodNames[:]) }

// String returns the name in pg_hba.conf.
func (m Method) String() string {
	if int(m) < len(methodNames) {
		return methodNames[m]
	}
	return fmt.Sprintf("method(%d)", m)
}

// AsksPassword reports whether the client has to know a password.
func (m Method) AsksPassword() bool { return m <= Password }

// unsupported are PostgreSQL's other methods.
var unsupported = []string{"gss", "sspi", "ident", "pam", "bsd", "ldap", "radius", "oauth"}

// methodOf returns the method of that name.
func methodOf(name string, k kind) (Method, error) {
	if name == "ident" && k == local { // as PostgreSQL has it
		name = Peer.String()
	}
	m := Method(max(0, slices.Index(methodNames[:], name)))
	switch {
	case slices.Contains(unsupported, name):
		return 0, fmt.Errorf("method %q is not supported; use one of %s", name, list(methodNames[:]))
	case methodNames[m] != name:
		return 0, fmt.Errorf("unknown method %q; want one of %s", clip(name), list(methodNames[:]))
	case m == Peer && k != local:
		return 0, fmt.Errorf("method peer is for Unix sockets: type local")
	case m == Cert && k != hostSSL:
		return 0, fmt.Errorf("method cert is for connections with TLS: type hostssl")
	}
	return m, nil
}
