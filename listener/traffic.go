package listener

import (
	"slices"

	"github.com/headpond/headpond/traffic"
)

// Shard is where a session on c counts; see traffic.Cell.Shard.
func (c *Conn) Shard() int { return traffic.ShardOf(c.Loop()) }

// Measure adds a protocol's labelled counters to Stats.
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
