package check

import "reflect"

// violation describes the failure of a rule.
func (n *node) violation(s *step) Violation {
	return Violation{Rule: s.name, Param: s.param, Detail: n.detail(s)}
}

// formatNames are the names of text formats.
var formatNames = map[string]string{
	"email": "an e-mail address", "url": "a URL", "uri": "a URI", "http_url": "an http or https URL",
	"uuid": "a UUID", "uuid3": "a UUID of version 3", "uuid4": "a UUID of version 4", "uuid5": "a UUID of version 5",
	"alpha": "letters of the Latin alphabet", "alphanum": "Latin letters and digits", "alphaunicode": "letters", "alphanumunicode": "letters and digits",
	"ascii": "ASCII text", "printascii": "printable ASCII text", "numeric": "a decimal number", "number": "digits", "hexadecimal": "a hexadecimal number",
	"lowercase": "in lower case", "uppercase": "in upper case", "boolean": "true or false", "ip": "an IP address", "ipv4": "an IPv4 address", "ipv6": "an IPv6 address",
	"cidr": "an address range such as 10.0.0.0/8", "hostname_rfc1123": "a host name", "e164": "a telephone number such as +4930123456", "base64": "base64", "json": "JSON",
}

func (n *node) detail(s *step) string {
	unit := ""
	bound := s.param
	switch n.typ.Kind() {
	case reflect.String:
		unit = " characters long"
	case reflect.Slice, reflect.Array, reflect.Map:
		unit = " elements long"
	}
	if bound == "" {
		bound = "now"
	}
	switch s.name {
	case "required":
		return "is required"
	case "isdefault":
		return "must not be set"
	case "min", "gte":
		return "must be at least " + bound + unit
	case "max", "lte":
		return "must be at most " + bound + unit
	case "gt":
		return "must be more than " + bound + unit
	case "lt":
		return "must be less than " + bound + unit
	case "len":
		return "must be exactly " + bound + unit
	case "eq":
		return "must be " + s.param
	case "ne":
		return "must not be " + s.param
	case "oneof":
		return "must be one of " + s.param
	case "unique":
		return "must have no equal elements"
	case "contains", "containsany", "startswith", "endswith":
		return map[string]string{
			"contains": "must contain ", "containsany": "must contain one of ", "startswith": "must start with ", "endswith": "must end with ",
		}[s.name] + s.param
	case "excludes", "excludesall":
		return "must not contain " + s.param
	case "datetime":
		return "must be a time such as " + s.param
	case "eqfield", "nefield", "gtfield", "gtefield", "ltfield", "ltefield":
		return "must be " + map[string]string{
			"eqfield": "equal to ", "nefield": "different from ", "gtfield": "greater than ", "gtefield": "at least ", "ltfield": "less than ", "ltefield": "at most ",
		}[s.name] + s.param
	}
	if name, ok := formatNames[s.name]; ok {
		return "must be " + name
	}
	return "breaks the rule " + s.name
}
