package gateway

import (
	"slices"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// ownFiles is the number of files that a gateway has open besides connections: the engine, log, admin page and its
// clients, files that are read.
const ownFiles = 100

// openFiles is the number of files that cfg may need at full load: one for each client, waiting ones
// included, and one for each connection to a backend, of which there are at most as many as the pools
// permit, or as the clients and "max_warm" need. Connections that another machine makes do not count.
func openFiles(cfg *config.Config) uint64 {
	total := ownFiles
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		total += 1 + l.MaxQueue
		if most := extend.ProtocolOf(l.Protocol).MaxConns; most != nil {
			total += most(l)
		} else {
			total += l.MaxConns
		}
	}
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		clients := 0
		for j := range cfg.Listeners {
			if l := &cfg.Listeners[j]; slices.Contains(l.Upstreams(), u.Name) {
				clients += l.MaxConns
			}
		}
		if !u.Far() {
			total += min(clients+widthOf(u)*u.Pool.MaxWarm, widthOf(u)*u.Pool.MaxSize)
		}
	}
	return uint64(total) //nolint:gosec // none of these is negative
}

// clientsWithin is the number of clients within a limit of open files below openFiles, together with their connections
// to backends: one each, or as many as the pools allow if those are fewer.
func clientsWithin(limit uint64, cfg *config.Config) int {
	room := int(limit) - ownFiles - len(cfg.Listeners) //nolint:gosec // it is below openFiles
	idle, most := 0, 0
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		switch {
		case u.Far():
		case u.Pool.Overflow == config.OverflowDirect:
			most = room
		default:
			most += widthOf(u) * u.Pool.MaxSize
		}
		idle += widthOf(u) * u.Pool.MaxWarm
	}
	return max(room-most, (room-idle)/2, 1)
}

// resizeRooms sets the number of clients that may be connected, each with a connection to a backend; 0
// = no limit.
func (g *Gateway) resizeRooms(clients int, cfg *config.Config) {
	connections, sessions := roomsFor(clients, cfg)
	g.room.Resize(connections)
	g.senders.Resize(sessions)
}

// roomsFor divides the files of that many clients among connections and sessions of datagrams. A
// session takes one file, not two. If there are listeners of both kinds, each kind gets half of the
// files.
func roomsFor(clients int, cfg *config.Config) (connections, sessions int) {
	datagrams := func(l config.Listener) bool { return extend.ProtocolOf(l.Protocol).Config.Datagrams }
	streams := func(l config.Listener) bool { return !datagrams(l) }
	if slices.ContainsFunc(cfg.Listeners, datagrams) && slices.ContainsFunc(cfg.Listeners, streams) && clients > 1 {
		return clients / 2, clients
	}
	return clients, clients
}

// widthOf returns how many endpoints an upstream has, one if they are yet to be discovered.
func widthOf(u *config.Upstream) int { return max(len(u.Endpoints), 1) }
