package httppool

import "strings"

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
