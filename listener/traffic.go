package listener

import (
	"slices"

	"github.com/headpond/headpond/traffic"
)

// Shard returns the number of the shard in which a session on c counts; see traffic.Cell.Shard.
func (c *Conn) Shard() int { return traffic.ShardOf(c.Loop()) }

// Measure adds a set of labelled counters to Stats.Traffic.
func (s *Server) Measure(set *traffic.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traffic = append(s.traffic, set)
}

func (s *Server) measured() []*traffic.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.traffic)
}
