package udpproxy

import "time"

// refusalTime is how long an endpoint that has answered before has to send nothing, since its client has sent something after a refusal, until
// the refusal is believed. ICMP messages have no authentication, and say nothing of a server that restarts quickly.
var refusalTime = time.Second // tests have it longer

// doubt is a refusal by an endpoint that has answered before. The zero value is none.
type doubt struct {
	refusal error     // the first one since the endpoint last sent something; nil = none
	since   time.Time // when it came
	asked   time.Time // when the client sent something after it, as far as is known; zero = it has not
}

// raise records a refusal, unless there is one already, or the endpoint has sent something after it.
func (d *doubt) raise(refusal error, at, spoken time.Time) {
	if d.refusal == nil && at.After(spoken) {
		*d = doubt{refusal: refusal, since: at}
	}
}

// believed returns when the refusal is believed; last is when the client last sent something. It is the zero time if there
// is nothing to believe: the endpoint owes no answer.
func (d *doubt) believed(last time.Time) time.Time {
	if d.refusal == nil {
		return time.Time{}
	}
	if d.asked.IsZero() && last.After(d.since) {
		d.asked = last
	}
	if d.asked.IsZero() {
		return time.Time{}
	}
	return d.asked.Add(refusalTime)
}
