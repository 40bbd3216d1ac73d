package pgproxy

import (
	"fmt"
	"time"
)

// Pairs returns the sessions of each pair, by its label, and how many databases the pairs know.
func (b *Postgres) Pairs() (sessions map[string]int, databases int) {
	sessions = map[string]int{}
	b.eachPair(func(p *Postgres) { sessions[p.label] = p.sessions })
	b.pairs.mu.Lock()
	defer b.pairs.mu.Unlock()
	return sessions, len(b.pairs.catalogs)
}

// PairsStayFor sets how long pairs stay without sessions, before there are any.
func (b *Postgres) PairsStayFor(d time.Duration) { b.pairs.least = d; b.setPairIdle(d) }

// Print prints what pairs have in several ways.
func (b *Postgres) Print() (all string) {
	b.eachPair(func(p *Postgres) { all += fmt.Sprintf("%v %+[1]v %#[1]v %s %[2]x %[2]d", p.pair, p.secret.Load()) })
	return all
}

// Pair returns the pair of a user and a database.
func (b *Postgres) Pair(user, database string) (pair *Postgres) {
	b.eachPair(func(p *Postgres) {
		if p.user == user && p.database == database {
			pair = p
		}
	})
	return pair
}
