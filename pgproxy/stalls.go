package pgproxy

import (
	"sync"
	"time"
)

// stalls are the logins of pairs that servers have begun and not completed in time. One of them may have its reason in a
// database, which another program locks, or in a user. Several are the server's failure.
type stalls struct {
	mu         sync.Mutex                            // held for a few instructions; not with pairs.mu
	byEndpoint map[string]map[pairName]time.Duration // when, by clock; since a login was completed
}

// stallsFor is how long a stall is remembered at an endpoint to which nobody else logs in.
const stallsFor = time.Minute

// completed notes that an endpoint has completed a login.
func (s *stalls) completed(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byEndpoint, endpoint)
}

// add notes a stall. It returns how many databases, and how many pairs of user and database, have seen one at the endpoint
// since a login was completed there.
func (s *stalls) add(endpoint string, name pairName) (databases, names int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := clock()
	for at, seen := range s.byEndpoint {
		for old, when := range seen {
			if now-when > stallsFor {
				delete(seen, old)
			}
		}
		if len(seen) == 0 {
			delete(s.byEndpoint, at)
		}
	}
	if s.byEndpoint == nil {
		s.byEndpoint = map[string]map[pairName]time.Duration{}
	}
	seen := s.byEndpoint[endpoint]
	if seen == nil {
		seen = map[pairName]time.Duration{}
		s.byEndpoint[endpoint] = seen
	}
	seen[name] = now
	distinct := map[string]bool{}
	for n := range seen {
		distinct[n.database] = true
	}
	return len(distinct), len(seen)
}

// stalled notes that a login of the pair was not completed in time, and reports whether the endpoint is to blame: pairs of
// another database have seen the same, or other users have, and there is no other database that works for anybody.
func (b *Postgres) stalled(endpoint string) (blame bool) {
	databases, names := b.of.stalls.add(endpoint, b.pairName)
	if databases > 1 || names == 1 {
		return databases > 1
	}
	blame = true
	b.of.eachPair(func(p *Postgres) { blame = blame && (p.database == b.database || !p.opened.Load()) })
	return blame
}
