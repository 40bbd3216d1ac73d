package httppool

import "strings"

// isToken[c] says whether c may stand in a method or a field name (RFC 9110, section 5.6.2).
var isToken = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

func validToken(s string) bool {
	for i := range len(s) {
		if !isToken[s[i]] {
			return false
		}
	}
	return s != ""
}

// validValue says whether s may be a field value: no control character except HTAB (RFC 9110, section 5.5).
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' && c != '\t') || c == 0x7f {
			return false
		}
	}
	return true
}

// tokens calls yield with each element of the comma-separated lists in values, trimmed, until it returns false.
func tokens(values []string, yield func(string) bool) {
	for _, v := range values {
		for v != "" {
			var token string
			token, v, _ = strings.Cut(v, ",")
			if token = strings.Trim(token, " \t"); token != "" && !yield(token) {
				return
			}
		}
	}
}

// hasToken says whether the comma-separated lists in values name token, in any case.
func hasToken(values []string, token string) bool {
	found := false
	tokens(values, func(t string) bool {
		found = strings.EqualFold(t, token)
		return !found
	})
	return found
}
