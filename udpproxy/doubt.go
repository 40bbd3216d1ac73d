package udpproxy

import "time"

// refusalTime is how long an endpoint that has answered before must stay silent, after its client has sent something
// following a refusal, until the refusal is believed. ICMP messages are not authenticated, and a refusal may come from
// a server that restarts quickly.
var refusalTime = time.Second // tests set a longer time

// doubt is a refusal by an endpoint that has answered before. The zero value is no refusal.
type doubt struct {
	refusal error     // the first one since the endpoint last sent something; nil = none
	since   time.Time // when refusal came
	asked   time.Time // when the client sent something after refusal, as far as is known; zero = not yet
}

// raise records a refusal, unless one is recorded already or the endpoint has sent something since.
func (d *doubt) raise(refusal error, at, spoken time.Time) {
	if d.refusal == nil && at.After(spoken) {
		*d = doubt{refusal: refusal, since: at}
	}
}

// believed returns when the refusal is believed. last is when the client last sent something. The result is the zero
// time if there is no refusal or the endpoint owes no answer.
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
