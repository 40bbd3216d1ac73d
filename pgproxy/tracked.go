package pgproxy

import (
	"strings"
	"unique"
)

// trackedNames are the parameters that servers report and clients may change: each client's
// values follow it from server connection to server connection.
var trackedNames = [...]string{
	"application_name", "client_encoding", "DateStyle", "IntervalStyle", "TimeZone",
	"standard_conforming_strings", "default_transaction_read_only", "search_path", "scram_iterations",
}

// trackedParams holds a value for each of trackedNames.
type trackedParams struct {
	value [len(trackedNames)]string
	known [len(trackedNames)]bool // the server reports it; older ones do not report all
}

// nothingTracked is what every session begins with.
var nothingTracked = unique.Make(trackedParams{})

// tracked returns the index of a name in trackedNames, -1 if it is not there.
func tracked(name string) int {
	for i, n := range trackedNames {
		if strings.EqualFold(n, name) {
			return i
		}
	}
	return -1
}

// set notes a value and returns the index, -1 if the name is not tracked.
func (t *trackedParams) set(name, value string) int {
	i := tracked(name)
	if i >= 0 {
		t.value[i], t.known[i] = value, true
	}
	return i
}
