package admin

import (
	"fmt"
	"time"

	"github.com/headpond/headpond/upstream"
)

// Pair is a pair of user and database as which clients of an upstream log in to its servers (login_as: client), with the
// sums of its pools at all endpoints.
type Pair struct {
	Name        string     `json:"name"` // user@database; then " (trusted)" if no client was asked for a password, " (2)" if clients prove another secret
	Idle        int        `json:"idle"`
	InUse       int        `json:"in_use"`
	Opening     int        `json:"opening"`
	Waiting     int        `json:"waiting"`
	MaxSize     int        `json:"max_size"`
	Refused     uint64     `json:"refused"`      // acquires that timed out or were rejected
	LastRefused *time.Time `json:"last_refused"` // null: never
	Ended       bool       `json:"ended"`        // its last connections are still in use
}

// pairs are the pairs of an upstream; the list is never null.
func pairs(tenants []upstream.TenantStatus) []Pair {
	list := make([]Pair, 0, len(tenants))
	for _, t := range tenants {
		p := t.Pool
		list = append(list, Pair{
			Name: t.Name, Idle: p.Idle, InUse: p.InUse + p.Direct, Opening: p.Opening, Waiting: p.Waiting, MaxSize: p.MaxSize,
			Refused: p.TimedOut + p.Rejected + p.GaveUp, LastRefused: timeOrNil(p.LastRefused), Ended: t.Closed,
		})
	}
	return list
}

// maxPairTroubles bounds the sentences about pairs of an upstream: there may be thousands with the same problem.
const maxPairTroubles = 5

// pairTroubles returns sentences about the pools of an upstream's pairs.
func (u *UpstreamStatus) pairTroubles(now time.Time) (lines []string) {
	more := 0
	for _, p := range u.Pairs {
		text := poolTrouble(p.InUse, p.MaxSize, p.Waiting, p.Refused, p.LastRefused, now)
		switch {
		case text == "":
		case len(lines) < maxPairTroubles:
			lines = append(lines, fmt.Sprintf("upstream %s, pair %s: %s", u.Name, p.Name, text))
		default:
			more++
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("upstream %s: pairs in like trouble that are not shown: %d", u.Name, more))
	}
	return lines
}

// poolTrouble returns what is wrong with a pool, "" if nothing is.
func poolTrouble(inUse, maxSize, waiting int, refused uint64, lastRefused *time.Time, now time.Time) string {
	switch {
	case inUse >= maxSize && waiting > 0:
		return fmt.Sprintf("every connection is in use (max_size %d), sessions that wait: %d", maxSize, waiting)
	case within(lastRefused, now):
		return fmt.Sprintf("acquires were refused %s, no connection was free or could be opened in time (max_size %d); since the start: %d",
			ago(*lastRefused, now), maxSize, refused)
	}
	return ""
}
