package pgbouncerini

// Accepts returns, for each key of a section, a function that reports whether PgBouncer accepts a value.
func Accepts(section string) map[string]func(text string) bool {
	accepts := map[string]func(string) bool{}
	for _, k := range map[string][]key{"pgbouncer": mainKeys, "databases": databaseKeys, "users": userKeys, "peers": peerKeys}[section] {
		accepts[k.name] = func(text string) bool { return k.check == nil || k.check(text) == nil }
	}
	return accepts
}
