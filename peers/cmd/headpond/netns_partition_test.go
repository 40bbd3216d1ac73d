//go:build netns

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// TestTablesAfterPartition: packets between two parts of a network are lost until each part has forgotten the other and given up its connections
// there. When packets pass again, all tables are equal. It logs after how long.
func TestTablesAfterPartition(t *testing.T) {
	addresses := []string{"11.0.0.1", "11.0.0.2", "11.0.0.3", "11.0.0.4"} // the first two are in the east
	world := newInternet(t, oneWay, lost)
	program := built(t)
	var sites []*site
	for i, address := range addresses {
		s := newSite(t, program, newNamespace(t, []string{"ea", "eb", "wa", "wb"}[i]))
		world.attach(s.namespace, address)
		counter(s.namespace)
		sites = append(sites, s)
	}
	for i, s := range sites {
		bootstrap := []string{"[]", at(addresses[0], sites[0]), at(addresses[0], sites[0]), at(addresses[2], sites[2])}[i]
		s.start("peers: {key: node.key, " + nodeListens + ", bootstrap: " + bootstrap + "}\n" + offering("anyone"))
	}
	east, west := sites[:2], sites[2:]
	agree := func(what string, members []*site) {
		t.Helper()
		conntest.Eventually(t, what, func() bool {
			for _, s := range members {
				for _, other := range sites {
					if want := slices.Contains(members, other); s != other && s.knows(other.id) != want {
						return false
					}
				}
			}
			return true
		})
	}
	cut := func(is bool) {
		for i := range east {
			for k := range west {
				world.cut(addresses[i], addresses[len(east)+k], is)
			}
		}
	}
	agree("all know all", sites)
	cut(true)
	agree("the east has forgotten the west", east)
	agree("the west has forgotten the east", west)
	conntest.Eventually(t, "the connection is given up", func() bool {
		return !west[0].peer(east[0].id).Connected && !east[0].peer(west[0].id).Connected
	})
	cut(false)
	healed := time.Now()
	agree("all know all again", sites)
	t.Logf("all tables are equal %v after the partition", time.Since(healed).Round(10*time.Millisecond))
}
