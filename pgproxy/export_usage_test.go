package pgproxy

import "time"

// History is the usage of the last minute, with times that the test gives.
type History struct{ h history }

// NewHistory returns the history of a Proxy that begins at a time.
func NewHistory(at time.Time) *History { return &History{h: newHistory(at)} }

// Tick is what the Proxy does every second.
func (h *History) Tick(now time.Time, usage []Usage) {
	if h.h.due(now) {
		h.h.keep(now, usage)
	}
}

// Oldest is RecentUsage at a time.
func (h *History) Oldest(now time.Time) ([]Usage, time.Duration) { return h.h.oldest(now) }

// AgeAnswers makes the answers of the proxy's AuthQuery older.
func (p *Proxy) AgeAnswers(by time.Duration) {
	a := p.settings.Load().answers
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, found := range a.byUser {
		found.at -= by
	}
}
