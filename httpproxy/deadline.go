package httpproxy

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// setDeadline bounds the exchange by the limits of its route and its client.
func (s *session) setDeadline() {
	x := &s.ex
	if d := x.target.route.Timeout; d > 0 {
		x.until = s.now.Add(d)
	}
	if st := s.stream; st != nil && st.limit() > 0 {
		x.until = x.earlier(s.now.Add(st.limit()))
	}
	if name := x.target.route.DeadlineHeader; name != "" {
		s.applyDeadlineField(name)
	}
}

// applyDeadlineField bounds the exchange by a client's field, whose name is in lower case.
func (s *session) applyDeadlineField(name string) {
	for i := range s.req.Fields {
		f := &s.req.Fields[i]
		if !httpwire.EqualFold(f.Name, name) {
			continue
		}
		if d := parseTimeout(name, view(f.Value)); d > 0 {
			s.ex.until = s.ex.earlier(s.now.Add(d))
		}
	}
}

// parseTimeout parses the value of such a field; 0 = it is not valid.
func parseTimeout(name, value string) time.Duration {
	unit := time.Second
	if strings.HasSuffix(name, "-ms") {
		unit = time.Millisecond
	}
	if value == "" || value[0] < '0' || value[0] > '9' {
		return 0
	}
	if last := value[len(value)-1]; last < '0' || last > '9' {
		d, err := time.ParseDuration(value)
		if err != nil {
			return 0
		}
		return d
	}
	n, err := strconv.ParseFloat(value, 64)
	if err != nil || n >= float64(math.MaxInt64/unit) {
		return 0
	}
	return time.Duration(n * float64(unit))
}
