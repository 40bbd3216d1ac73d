package httpwire

// Known classifies the fields that a proxy treats specially.
type Known uint8

// The fields; the zero value is any other.
const (
	Other Known = iota
	Authorization
	Connection
	ContentLength
	Date
	Expect
	Forwarded // Forwarded, X-Forwarded-*, X-Real-Ip
	Host
	KeepAlive
	HopByHop // fields of one connection without a name here
	Upgrade
	TE
	Trailer
	TransferEncoding
	Via
	Challenge // WWW-Authenticate
	XForwardedFor
	XForwardedHost
	XForwardedProto
	XRequestID
	ForwardedRFC // Forwarded (RFC 7239)
)

// Connectional reports whether the field is about one connection and goes no further (RFC 9110,
// section 7.6.1).
func (k Known) Connectional() bool {
	switch k {
	case Connection, KeepAlive, HopByHop, Upgrade, TE, TransferEncoding:
		return true
	}
	return false
}

// Classify returns the Known of a field's name, in any case.
func Classify[S ~string | ~[]byte](name S) Known { return knownField([]byte(name)) }

// knownField classifies a name.
func knownField(name []byte) Known {
	switch len(name) {
	case 2:
		return pick(name, "te", TE)
	case 3:
		return pick(name, "via", Via)
	case 4:
		return pick2(name, "host", Host, "date", Date)
	case 6:
		return pick(name, "expect", Expect)
	case 7:
		return pick2(name, "upgrade", Upgrade, "trailer", Trailer)
	case 9:
		return pick2(name, "forwarded", ForwardedRFC, "x-real-ip", Forwarded)
	case 10:
		return pick2(name, "connection", Connection, "keep-alive", KeepAlive)
	case 12:
		return pick(name, "x-request-id", XRequestID)
	case 13:
		return pick(name, "authorization", Authorization)
	case 14:
		return pick2(name, "content-length", ContentLength, "http2-settings", HopByHop)
	case 17:
		if EqualFold(name, "transfer-encoding") {
			return TransferEncoding
		}
	}
	return knownLong(name)
}

// knownLong classifies the names that are rare.
func knownLong(name []byte) Known {
	if len(name) > len("x-forwarded-") && EqualFold(name[:len("x-forwarded-")], "x-forwarded-") {
		switch rest := name[len("x-forwarded-"):]; {
		case EqualFold(rest, "for"):
			return XForwardedFor
		case EqualFold(rest, "host"):
			return XForwardedHost
		case EqualFold(rest, "proto"):
			return XForwardedProto
		}
		return Forwarded
	}
	switch len(name) {
	case 16:
		return pick2(name, "proxy-connection", HopByHop, "www-authenticate", Challenge)
	case 18:
		return pick(name, "proxy-authenticate", HopByHop)
	case 19:
		return pick(name, "proxy-authorization", HopByHop)
	case 25:
		return pick(name, "proxy-authentication-info", HopByHop)
	}
	return Other
}

func pick(name []byte, lower string, k Known) Known {
	if EqualFold(name, lower) {
		return k
	}
	return Other
}

func pick2(name []byte, a string, ka Known, b string, kb Known) Known {
	if EqualFold(name, a) {
		return ka
	}
	return pick(name, b, kb)
}
