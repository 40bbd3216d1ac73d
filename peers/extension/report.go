package extension

import (
	"fmt"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/peers"
)

// NodeStatus is this gateway as a node, in /api/v1/status. Counters count since the start.
type NodeStatus struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"`
	Conns     int      `json:"connections"` // libp2p connections
	Peers     int      `json:"peers"`       // that are connected
	Callers   []string `json:"callers"`     // peers with a session to services here
	Streams   int      `json:"streams"`     // open connections to services here
	Accepted  uint64   `json:"accepted"`    // connections to services here
	Refused   uint64   `json:"refused"`     // of Accepted, refused by policy or limits
	Limited   uint64   `json:"limited"`     // of Accepted, refused by "per_peer"
	Exhausted uint64   `json:"exhausted"`   // libp2p connections and streams that this node's limits have refused
	Failed    uint64   `json:"failed"`      // of Accepted, failed because the server could not be reached
	BytesIn   uint64   `json:"bytes_in"`    // to services here
	BytesOut  uint64   `json:"bytes_out"`   // from them
	// Throttled is the total time that connections waited because of "per_peer".
	Throttled float64 `json:"throttled_seconds"`

	DHT     DHTStatus    `json:"dht"`
	Records RecordStatus `json:"records"` // records of other nodes
}

// DHTStatus is a node's part in the DHT of its network.
type DHTStatus struct {
	On      bool   `json:"on"`
	Server  bool   `json:"server"`  // it answers lookups; otherwise it only makes them
	Nodes   int    `json:"nodes"`   // in the routing table
	Lookups uint64 `json:"lookups"` // of nodes without a known address
	Found   uint64 `json:"found"`   // of these
}

// RecordStatus counts records of other nodes.
type RecordStatus struct {
	Taken   uint64 `json:"taken"`
	Forged  uint64 `json:"forged"`  // with a wrong signature or format, or issued in the future
	Stale   uint64 `json:"stale"`   // out of date
	Flooded uint64 `json:"flooded"` // over the limits of records
	Full    uint64 `json:"full"`    // that did not fit into the table
	Evicted uint64 `json:"evicted"` // nodes removed from a full table for others
}

// OfferStatus is a service that another node offers, in /api/v1/status.
type OfferStatus struct {
	Service   string    `json:"service"`
	Peer      string    `json:"peer"`
	Groups    []string  `json:"groups"`
	Load      int       `json:"load"`     // open connections at the node
	Capacity  int       `json:"capacity"` // concurrent connections that callers should respect; 0: unknown
	Version   string    `json:"version"`  // of the node's program
	Since     time.Time `json:"since"`
	Expires   time.Time `json:"expires"`    // when the announcement expires
	LastError string    `json:"last_error"` // the last failure of a call, while the node is in backoff
}

// PeerStatus is another node, in /api/v1/status.
type PeerStatus struct {
	ID        string  `json:"id"`
	Bootstrap bool    `json:"bootstrap"`
	Connected bool    `json:"connected"`
	Relayed   bool    `json:"relayed"`
	Path      string  `json:"path"`        // the multiaddress of the connection
	RTT       float64 `json:"rtt_seconds"` // 0: not known
	Calls     int     `json:"calls"`       // open connections to its services
	Callers   int     `json:"callers"`     // open connections of the peer to services here
	Opened    uint64  `json:"opened"`      // connections to its services since the first call
	BytesIn   uint64  `json:"bytes_in"`    // from its services
	BytesOut  uint64  `json:"bytes_out"`   // to them
	LastError string  `json:"last_error"`  // why a bootstrap peer, or a peer that is called, is not connected
}

// show returns a node's rows for the admin pages. n may be nil: there are no rows then.
func show(n *peers.Node) []admin.Addition {
	if n == nil {
		return []admin.Addition{nodeReport.Of(nil), peerReport.Of(nil), offerReport.Of(nil)}
	}
	s := n.Status()
	node := NodeStatus{
		ID: s.ID, Addresses: append([]string{}, s.Addrs...), Conns: s.Conns, Callers: append([]string{}, s.Served.Connected...), Streams: s.Served.Streams,
		Accepted: s.Served.Accepted, Refused: s.Served.Refused, Limited: s.Limits.Refused, Throttled: s.Limits.Waited.Seconds(), Failed: s.Served.Failed, Exhausted: s.Exhausted, BytesIn: s.Served.BytesIn, BytesOut: s.Served.BytesOut,
		DHT: DHTStatus(s.DHT), Records: RecordStatus(s.Gossip),
	}
	var rows []PeerStatus
	for _, p := range s.Peers {
		row := PeerStatus{
			ID: p.ID, Bootstrap: p.Bootstrap, Connected: p.Connected, Relayed: p.Relayed, Path: p.Path, RTT: p.RTT.Seconds(),
			Calls: p.Calls.Streams, Callers: p.Callers, Opened: p.Calls.Opened, BytesIn: p.Calls.BytesIn, BytesOut: p.Calls.BytesOut,
		}
		if p.Err != nil {
			row.LastError = p.Err.Error()
		}
		if p.Connected {
			node.Peers++
		}
		rows = append(rows, row)
	}
	var offers []OfferStatus
	for _, o := range s.Offers {
		row := OfferStatus{
			Service: o.Name, Peer: o.Peer, Groups: append([]string{}, o.Groups...), Load: o.Load, Capacity: o.Capacity, Version: o.Version,
			Since: o.Since, Expires: o.Expires,
		}
		if o.Err != nil {
			row.LastError = o.Err.Error()
		}
		offers = append(offers, row)
	}
	return []admin.Addition{nodeReport.Of([]NodeStatus{node}), peerReport.Of(rows), offerReport.Of(offers)}
}

var nodeReport = admin.Report[NodeStatus]{
	Key: "node", Title: "Node",
	Columns: []admin.Column[NodeStatus]{
		admin.Text("node", func(s NodeStatus) string { return s.ID }),
		admin.Count("peers", func(s NodeStatus) float64 { return float64(s.Peers) }),
		admin.Count("callers", func(s NodeStatus) float64 { return float64(len(s.Callers)) }),
		admin.Count("streams", func(s NodeStatus) float64 { return float64(s.Streams) }),
		admin.Count("refused", func(s NodeStatus) float64 { return float64(s.Refused) }),
	},
	Details: []admin.Column[NodeStatus]{
		admin.Count("accepted", func(s NodeStatus) float64 { return float64(s.Accepted) }),
		admin.Count("failed", func(s NodeStatus) float64 { return float64(s.Failed) }),
		admin.Count("exhausted", func(s NodeStatus) float64 { return float64(s.Exhausted) }),
		admin.Bytes("in", func(s NodeStatus) float64 { return float64(s.BytesIn) }),
		admin.Bytes("out", func(s NodeStatus) float64 { return float64(s.BytesOut) }),
		admin.Count("dht nodes", func(s NodeStatus) float64 { return float64(s.DHT.Nodes) }),
		admin.Text("addresses", func(s NodeStatus) string { return strings.Join(s.Addresses, " ") }),
	},
	Values: func(NodeStatus) []string { return nil },
	Metrics: []admin.RowMetric[NodeStatus]{
		admin.Gauge("node_peers", "Other nodes that are connected.", func(s NodeStatus) float64 { return float64(s.Peers) }),
		admin.Gauge("node_connections", "libp2p connections to other nodes.", func(s NodeStatus) float64 { return float64(s.Conns) }),
		admin.Gauge("node_streams", "Connections to services here that other nodes have open.", func(s NodeStatus) float64 { return float64(s.Streams) }),
		admin.Counter("node_accepted_total", "Connections to services here that other nodes asked for.", func(s NodeStatus) float64 { return float64(s.Accepted) }),
		admin.Counter("node_refused_total", "Connections to services here that policy or limits forbade.", func(s NodeStatus) float64 { return float64(s.Refused) }),
		admin.Counter("node_limited_total", "Connections to services here that limits for a peer forbade.", func(s NodeStatus) float64 { return float64(s.Limited) }),
		admin.Counter("node_throttled_seconds_total", "Time for which connections of peers that were too fast have waited.", func(s NodeStatus) float64 { return s.Throttled }),
		admin.Counter("node_exhausted_total", "libp2p connections and streams that limits of the node refused.", func(s NodeStatus) float64 { return float64(s.Exhausted) }),
		admin.Counter("node_failed_total", "Connections to services here whose server could not be reached.", func(s NodeStatus) float64 { return float64(s.Failed) }),
		admin.Counter("node_received_bytes_total", "Bytes to services here.", func(s NodeStatus) float64 { return float64(s.BytesIn) }),
		admin.Counter("node_sent_bytes_total", "Bytes from services here.", func(s NodeStatus) float64 { return float64(s.BytesOut) }),
		admin.Gauge("node_dht_nodes", "Nodes in the routing table of the DHT.", func(s NodeStatus) float64 { return float64(s.DHT.Nodes) }),
		admin.Counter("node_dht_lookups_total", "Nodes that were looked for in the DHT.", func(s NodeStatus) float64 { return float64(s.DHT.Lookups) }),
		admin.Counter("node_dht_found_total", "Nodes that were found in the DHT.", func(s NodeStatus) float64 { return float64(s.DHT.Found) }),
		admin.Counter("node_records_taken_total", "Records of other nodes' services that said something new.", func(s NodeStatus) float64 { return float64(s.Records.Taken) }),
		admin.Counter("node_records_refused_total", "Records of other nodes that were forged, broken, out of date, too many, or without room.", func(s NodeStatus) float64 {
			return float64(s.Records.Forged + s.Records.Stale + s.Records.Flooded + s.Records.Full)
		}),
	},
}

var offerReport = admin.Report[OfferStatus]{
	Key: "peer_services", Title: "Services of peers",
	Columns: []admin.Column[OfferStatus]{
		admin.Text("service", func(s OfferStatus) string { return s.Service }),
		admin.Text("peer", func(s OfferStatus) string { return s.Peer }),
		admin.State("state", OfferStatus.state),
		admin.Count("load", func(s OfferStatus) float64 { return float64(s.Load) }),
		admin.Count("capacity", func(s OfferStatus) float64 { return float64(s.Capacity) }),
	},
	Details: []admin.Column[OfferStatus]{
		admin.Text("groups", func(s OfferStatus) string { return strings.Join(s.Groups, " ") }),
		admin.Text("version", func(s OfferStatus) string { return s.Version }),
		admin.Error("error", func(s OfferStatus) string { return s.LastError }),
	},
}

// state returns the state of a service in a word.
func (s OfferStatus) state() (admin.Level, string) {
	if s.LastError != "" {
		return admin.Warn, "failing"
	}
	return admin.Good, "offered"
}

var peerReport = admin.Report[PeerStatus]{
	Key: "peers", Title: "Peers",
	Columns: []admin.Column[PeerStatus]{
		admin.Text("peer", func(s PeerStatus) string { return s.ID }),
		admin.State("state", PeerStatus.state),
		admin.Text("rtt", PeerStatus.rtt),
		admin.Count("calls", func(s PeerStatus) float64 { return float64(s.Calls) }),
		admin.Count("callers", func(s PeerStatus) float64 { return float64(s.Callers) }),
	},
	Details: []admin.Column[PeerStatus]{
		admin.Text("path", func(s PeerStatus) string { return s.Path }),
		admin.Count("opened", func(s PeerStatus) float64 { return float64(s.Opened) }),
		admin.Bytes("in", func(s PeerStatus) float64 { return float64(s.BytesIn) }),
		admin.Bytes("out", func(s PeerStatus) float64 { return float64(s.BytesOut) }),
		admin.Error("error", func(s PeerStatus) string { return s.LastError }),
	},
	Trouble: func(s PeerStatus, _ time.Time) string {
		if s.LastError == "" {
			return ""
		}
		return fmt.Sprintf("peer %s: %s", s.ID, s.LastError)
	},
}

// state returns the state of a peer in a word.
func (s PeerStatus) state() (admin.Level, string) {
	switch {
	case !s.Connected && s.LastError != "":
		return admin.Bad, "not connected"
	case !s.Connected:
		return admin.Neutral, "not connected"
	case s.Relayed:
		return admin.Warn, "relayed"
	}
	return admin.Good, "direct"
}

// rtt formats the round trip to a peer.
func (s PeerStatus) rtt() string {
	if s.RTT == 0 {
		return ""
	}
	return time.Duration(s.RTT * float64(time.Second)).Round(10 * time.Microsecond).String()
}
