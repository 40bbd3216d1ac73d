package check

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
	"unsafe"
)

// formats are the rules on text without a parameter.
var formats = map[string]func(string) bool{
	"email":        email,
	"url":          isURL,
	"uri":          isURI,
	"http_url":     isHTTPURL,
	"uuid":         func(s string) bool { return uuid(s, 0) },
	"uuid3":        func(s string) bool { return uuid(s, '3') && s == strings.ToLower(s) },
	"uuid4":        func(s string) bool { return uuid(s, '4') && s == strings.ToLower(s) && variant(s) },
	"uuid5":        func(s string) bool { return uuid(s, '5') && s == strings.ToLower(s) && variant(s) },
	"alpha":        func(s string) bool { return every(s, letter) },
	"alphanum":     func(s string) bool { return every(s, func(c byte) bool { return letter(c) || digit(c) }) },
	"alphaunicode": func(s string) bool { return everyRune(s, unicode.IsLetter) },
	"alphanumunicode": func(s string) bool {
		return everyRune(s, func(r rune) bool { return unicode.In(r, unicode.L, unicode.N) })
	},
	"ascii":       func(s string) bool { return s == "" || every(s, func(c byte) bool { return c < utf8.RuneSelf }) },
	"printascii":  func(s string) bool { return s == "" || every(s, func(c byte) bool { return ' ' <= c && c <= '~' }) },
	"numeric":     numeric,
	"number":      func(s string) bool { return every(s, digit) },
	"hexadecimal": hexadecimal,
	"lowercase":   func(s string) bool { return s != "" && s == strings.ToLower(s) },
	"uppercase":   func(s string) bool { return s != "" && s == strings.ToUpper(s) },
	"boolean":     func(s string) bool { _, err := strconv.ParseBool(s); return err == nil },
	"ip":          func(s string) bool { return net.ParseIP(s) != nil },
	"ipv4":        func(s string) bool { ip := net.ParseIP(s); return ip != nil && ip.To4() != nil },
	"ipv6":        func(s string) bool { ip := net.ParseIP(s); return ip != nil && ip.To4() == nil },
	"cidr":        func(s string) bool { _, _, err := net.ParseCIDR(s); return err == nil },
	"hostname_rfc1123": func(s string) bool {
		for label := range strings.SplitSeq(s, ".") {
			n := len(label)
			if n == 0 || n > 63 || label[0] == '-' || label[n-1] == '-' || !every(label, func(c byte) bool { return letter(c) || digit(c) || c == '-' }) {
				return false
			}
		}
		return true
	},
	"e164": func(s string) bool {
		s = strings.TrimPrefix(s, "+")
		return 8 <= len(s) && len(s) <= 15 && s[0] != '0' && every(s, digit)
	},
	"base64": func(s string) bool {
		_, err := base64.StdEncoding.DecodeString(s)
		return err == nil && s != "" && !strings.ContainsAny(s, "\r\n")
	},
	"json": func(s string) bool { return json.Valid([]byte(s)) },
}

// pairs are the rules on text with a parameter.
var pairs = map[string]func(s, param string) bool{
	"contains":    strings.Contains,
	"containsany": strings.ContainsAny,
	"excludes":    func(s, param string) bool { return !strings.Contains(s, param) },
	"excludesall": func(s, param string) bool { return !strings.ContainsAny(s, param) },
	"startswith":  strings.HasPrefix,
	"endswith":    strings.HasSuffix,
	"datetime":    func(s, layout string) bool { _, err := time.Parse(layout, s); return err == nil },
}

// text makes a rule on text.
func text(name string, t reflect.Type, param string, hasParam bool) (func(p, _ unsafe.Pointer) bool, error) {
	format, ok := formats[name]
	pair, okPair := pairs[name]
	k := t.Kind()
	switch {
	case !ok && !okPair:
		return nil, fmt.Errorf("the rule %q is not known", name)
	case k >= reflect.Int && k <= reflect.Float64 && (name == "numeric" || name == "number"), k == reflect.Bool && name == "boolean":
		return func(_, _ unsafe.Pointer) bool { return true }, nil
	case k != reflect.String:
		return nil, fmt.Errorf("the rule %s needs a string, not %v", name, t)
	case ok && hasParam:
		return nil, fmt.Errorf("the rule %s takes no parameter", name)
	case okPair && param == "":
		return nil, fmt.Errorf("the rule %s needs a parameter", name)
	case ok:
		return func(p, _ unsafe.Pointer) bool { return format(*(*string)(p)) }, nil
	}
	return func(p, _ unsafe.Pointer) bool { return pair(*(*string)(p), param) }, nil
}

func letter(c byte) bool { c |= 0x20; return 'a' <= c && c <= 'z' }
func digit(c byte) bool  { return '0' <= c && c <= '9' }
func hex(c byte) bool    { return digit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }

// every reports whether s is not empty and ok holds for each byte.
func every(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return s != ""
}

func everyRune(s string, ok func(rune) bool) bool {
	for _, r := range s {
		if !ok(r) {
			return false
		}
	}
	return s != ""
}

func numeric(s string) bool {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		s = s[1:]
	}
	whole, fraction, point := strings.Cut(s, ".")
	return every(whole, digit) && (!point || every(fraction, digit))
}

func hexadecimal(s string) bool {
	if len(s) > 1 && s[0] == '0' && s[1]|0x20 == 'x' {
		s = s[2:]
	}
	return every(s, hex)
}

// uuid reports whether s has the form of a UUID, of one version unless that is 0.
func uuid(s string, version byte) bool {
	if len(s) != 36 || version != 0 && s[14] != version {
		return false
	}
	for i := range len(s) {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return false
			}
		} else if !hex(s[i]) {
			return false
		}
	}
	return true
}

func variant(s string) bool { return strings.IndexByte("89ab", s[19]) >= 0 }

func isURL(s string) bool {
	u, err := url.Parse(strings.ToLower(s))
	if err != nil || u.Scheme == "" {
		return false
	}
	if u.Scheme == "file" {
		return u.Path != "" && u.Path != "/"
	}
	return u.Host != "" || u.Fragment != "" || u.Opaque != ""
}

func isHTTPURL(s string) bool {
	if !isURL(s) {
		return false
	}
	u, err := url.Parse(strings.ToLower(s))
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

func isURI(s string) bool {
	s, _, _ = strings.Cut(s, "#")
	if s == "" {
		return false
	}
	_, err := url.ParseRequestURI(s)
	return err == nil
}

// atext has the bytes of an atom of RFC 5322.
var atext = func() (ok [256]bool) {
	for c := range 256 {
		ok[c] = letter(byte(c)) || digit(byte(c)) || c >= utf8.RuneSelf || c > 0 && strings.IndexByte("!#$%&'*+-/=?^_`{|}~", byte(c)) >= 0
	}
	return ok
}()

// email recognizes addresses as validator does: an addr-spec of RFC 5322 without comments, whose
// domain has at least two labels and ends in a letter.
func email(s string) bool {
	if s != "" && s[0] == '"' {
		return quotedEmail(s)
	}
	at := strings.IndexByte(s, '@')
	if at <= 0 {
		return false
	}
	ascii := true
	for i, atom := 0, false; i < at; i++ { // the local part: atoms with dots between them
		switch c := s[i]; {
		case c == '.':
			if !atom || i == at-1 {
				return false
			}
			atom = false
		case !atext[c]:
			return false
		default:
			atom = true
			ascii = ascii && c < utf8.RuneSelf
		}
	}
	return (ascii || text5322(s[:at])) && domain(s[at+1:])
}

// domain reports whether s is a domain in an address.
func domain(s string) bool {
	dot := false // one with a letter or digit before it and a letter after it
	ascii := true
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			if i == 0 || i == len(s)-1 || s[i-1] == '.' {
				return false
			}
			before, after := s[i-1], s[i+1]
			dot = dot || (letter(before) || digit(before) || before >= utf8.RuneSelf) && (letter(after) || after >= utf8.RuneSelf)
		case c >= utf8.RuneSelf:
			ascii = false
		case !letter(c) && !digit(c) && c != '-' && c != '~':
			return false
		}
	}
	if !dot {
		return false
	}
	first, last := s[0], s[len(s)-1]
	return (letter(first) || digit(first) || first >= utf8.RuneSelf) && (letter(last) || last >= utf8.RuneSelf) && (ascii || text5322(s))
}

// text5322 reports whether the bytes of s that are not ASCII are allowed in an address.
func text5322(s string) bool {
	for _, r := range s {
		if r >= utf8.RuneSelf && !(0xa0 <= r && r <= 0xd7ff || 0xf900 <= r && r <= 0xfdcf || 0xfdf0 <= r && r <= 0xffef) {
			return false
		}
	}
	return utf8.ValidString(s)
}

const (
	ucs   = `\x{A0}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFEF}`
	fws   = `(?:(?:[ \t]*\r\n)?[ \t]+)?`
	qtext = `(?:[\x01-\x08\x0b\x0c\x0e-\x1f\x7f!\x23-\x5b\x5d-\x7e` + ucs + `]|[\x01-\x09\x0b-\x0d\x0e-\x7f` + ucs + `])`
)

var quotedLocal = regexp.MustCompile(`^"(?:` + fws + qtext + `)*` + fws + `"$`)

// quotedEmail reports whether s is an address whose local part is in quotes, which is rare.
func quotedEmail(s string) bool {
	at := strings.LastIndexByte(s, '@')
	if at < 0 || !quotedLocal.MatchString(s[:at]) || !domain(s[at+1:]) {
		return false
	}
	_, err := mail.ParseAddress(s)
	return err == nil
}
