package pgproxy

// DatabaseAlone returns the database that a statement needs for itself, if the gateway sees that it is about databases.
func DatabaseAlone(sql string) string {
	if (*catalog)(nil).judge([]byte(sql))&traceAlone == 0 {
		return ""
	}
	return databaseAlone([]byte(sql))
}
