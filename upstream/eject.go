package upstream

import "time"

// ejector is the state of the passive check. It is pure: the time is an argument.
type ejector struct {
	cfg      Ejection // with defaults
	failures int      // in a row
	level    int      // number of ejections without a success in between
	out      bool
	since    time.Time // start of the last ejection
	until    time.Time // end of the last ejection
}

// failure counts a failure and reports whether it ejects the endpoint until e.until, which it does only if may is true.
// random is from 0 to 1.
func (e *ejector) failure(now time.Time, random float64, may bool) bool {
	e.failures++
	if !may || e.out || e.cfg.Failures < 0 || e.failures < e.cfg.Failures {
		return false
	}
	d := e.cfg.Base
	for range e.level {
		if d >= e.cfg.Max/2 {
			d = e.cfg.Max
			break
		}
		d *= 2
	}
	e.level++
	e.out, e.since = true, now
	e.until = now.Add(d + time.Duration(random*float64(d)/10))
	return true
}

// success ends the series of failures. It does not shorten an ejection, because the success may be of an older
// connection.
func (e *ejector) success() {
	e.level = 0
	e.failures = 0
}

// readmit ends the ejection if its time has passed, and reports whether it did.
func (e *ejector) readmit(now time.Time) bool {
	if !e.out || now.Before(e.until) {
		return false
	}
	e.end()
	return true
}

// reopened ends the ejection before its time, because a connection could be opened, and reports whether it did. An ejection
// lasts for Base at least: an endpoint that lets only some connections in must not come and go with each of them.
func (e *ejector) reopened(now time.Time) bool {
	if !e.out || now.Sub(e.since) < e.cfg.Base {
		return false
	}
	e.end()
	return true
}

// end ends the ejection. The next failure ejects the endpoint again.
func (e *ejector) end() {
	e.out = false
	e.failures = max(e.cfg.Failures-1, 0)
}

// clear resets the state, and reports whether the endpoint was out.
func (e *ejector) clear() bool {
	was := e.out
	*e = ejector{cfg: e.cfg}
	return was
}
