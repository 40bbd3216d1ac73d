package pgproxy

import (
	"strings"
	"unique"

	"github.com/headpond/headpond/pgwire"
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

// startOver ends a transaction in which RESET or DISCARD ALL may have gone back to what a server connection began with: in transaction
// mode, to what the client began with. The client is told of that after it was told of the other.
func (s *session) startOver() {
	reset, reports := s.reset, s.reports
	if s.reset, s.reports = false, 0; !reset || reports == 0 || s.c.Mode != Transaction {
		return
	}
	var own trackedParams
	for _, p := range s.srv.baseline {
		own.set(p.Name, p.Value)
	}
	was := s.reported.Value()
	s.unsure = s.takeSettings(s.srv.baseline)
	view := s.reported.Value()
	for i, name := range trackedNames {
		switch {
		case reports&(1<<i) == 0 || was.value[i] != own.value[i]:
			view.value[i], view.known[i] = was.value[i], was.known[i]
		case view.value[i] != was.value[i]:
			s.c.Writer.Send(&pgwire.ParameterStatus{Name: name, Value: view.value[i]})
		}
	}
	s.reported = unique.Make(view)
	s.replan()
}
