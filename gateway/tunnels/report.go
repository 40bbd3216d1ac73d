package tunnels

import (
	"fmt"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/tunnel"
)

// Status is one end of a tunnel in /api/v1/status. Counters count since the start.
type Status struct {
	Name      string   `json:"name"`      // the tunnel's, or of side "listen" the listener's
	Side      string   `json:"side"`      // Connects or Listens
	Connected []string `json:"connected"` // names of the peers that have a session; of side "connect" one, empty name
	// LastError is why a session is missing; empty: none is missing. FailingSince is since when.
	LastError    string     `json:"last_error"`
	FailingSince *time.Time `json:"failing_since"` // null: not failing
	Sessions     int        `json:"sessions"`
	Suspended    int        `json:"suspended"`   // sessions that wait for another socket
	Streams      int        `json:"streams"`     // connections that are open
	Made         uint64     `json:"made"`        // sessions
	TurnedAway   uint64     `json:"turned_away"` // sessions that were too many
	Lost         uint64     `json:"lost"`        // sessions, with their connections
	SocketsLost  uint64     `json:"sockets_lost"`
	Resumed      uint64     `json:"resumed"`
	Opened       uint64     `json:"opened"`   // connections this gateway asked for
	Accepted     uint64     `json:"accepted"` // connections the other side asked for
	Refused      uint64     `json:"refused"`  // of Accepted, by policy or limit
	Failed       uint64     `json:"failed"`   // of Accepted, because the target could not be reached
	BytesIn      uint64     `json:"bytes_in"`
	BytesOut     uint64     `json:"bytes_out"`
}

// The sides of a tunnel.
const (
	Connects = "connect" // the gateway keeps the sessions; the name is the tunnel's
	Listens  = "listen"  // peers do; the name is the listener's
)

// statusOf returns the API's form of one end of a tunnel.
func statusOf(side string, t tunnel.Stats) Status {
	out := Status{
		Name: t.Name, Side: side, Connected: append([]string{}, t.Connected...), Sessions: t.Sessions, Suspended: t.Suspended, Streams: t.Streams,
		Made: t.Made, TurnedAway: t.TurnedAway, Lost: t.Lost, SocketsLost: t.Broken, Resumed: t.Resumed, Opened: t.Opened, Accepted: t.Accepted,
		Refused: t.Refused, Failed: t.Failed, BytesIn: t.BytesIn, BytesOut: t.BytesOut,
	}
	if t.LastError != nil {
		out.LastError = t.LastError.Error()
	}
	if !t.FailingSince.IsZero() {
		out.FailingSince = &t.FailingSince
	}
	return out
}

var report = admin.Report[Status]{
	Key: "tunnels", Title: "Tunnels",
	Columns: []admin.Column[Status]{
		admin.Text("tunnel", func(t Status) string { return t.Name }),
		admin.Text("side", func(t Status) string { return t.Side }),
		admin.Count("sessions", func(t Status) float64 { return float64(t.Sessions) }),
		admin.Count("suspended", func(t Status) float64 { return float64(t.Suspended) }),
		admin.Count("streams", func(t Status) float64 { return float64(t.Streams) }),
		admin.Count("lost", func(t Status) float64 { return float64(t.Lost) }),
		admin.Text("peers", func(t Status) string { return strings.Join(t.Connected, ",") }),
	},
	Details: []admin.Column[Status]{
		admin.State("state", Status.state),
		admin.Count("turned away", func(t Status) float64 { return float64(t.TurnedAway) }),
		admin.Count("opened", func(t Status) float64 { return float64(t.Opened) }),
		admin.Count("accepted", func(t Status) float64 { return float64(t.Accepted) }),
		admin.Count("refused", func(t Status) float64 { return float64(t.Refused) }),
		admin.Count("failed", func(t Status) float64 { return float64(t.Failed) }),
		admin.Count("resumed", func(t Status) float64 { return float64(t.Resumed) }),
		admin.Bytes("in", func(t Status) float64 { return float64(t.BytesIn) }),
		admin.Bytes("out", func(t Status) float64 { return float64(t.BytesOut) }),
		admin.Error("error", func(t Status) string { return t.LastError }),
	},
	Labels: []string{"tunnel", "side"},
	Values: func(t Status) []string { return []string{t.Name, t.Side} },
	Metrics: []admin.RowMetric[Status]{
		admin.Gauge("tunnel_sessions", "Sessions with other gateways, those without a socket among them.", func(t Status) float64 { return float64(t.Sessions) }),
		admin.Gauge("tunnel_sessions_suspended", "Sessions that have lost their socket and wait for another.", func(t Status) float64 { return float64(t.Suspended) }),
		admin.Gauge("tunnel_streams", "Connections through the tunnel that are open.", func(t Status) float64 { return float64(t.Streams) }),
		admin.Counter("tunnel_sessions_total", "Sessions begun.", func(t Status) float64 { return float64(t.Made) }),
		admin.Counter("tunnel_turned_away_total", "Sessions of peers not taken, because there were max_sessions or max_sessions_per_peer.", func(t Status) float64 { return float64(t.TurnedAway) }),
		admin.Counter("tunnel_lost_total", "Sessions lost to a connection failure, with their connections.", func(t Status) float64 { return float64(t.Lost) }),
		admin.Counter("tunnel_sockets_lost_total", "Sockets that sessions have lost.", func(t Status) float64 { return float64(t.SocketsLost) }),
		admin.Counter("tunnel_resumed_total", "Times a session was resumed on another socket.", func(t Status) float64 { return float64(t.Resumed) }),
		admin.Counter("tunnel_opened_total", "Connections this gateway asked for.", func(t Status) float64 { return float64(t.Opened) }),
		admin.Counter("tunnel_accepted_total", "Connections the other side asked for.", func(t Status) float64 { return float64(t.Accepted) }),
		admin.Counter("tunnel_refused_total", "Connections the other side asked for and policy or limits forbade.", func(t Status) float64 { return float64(t.Refused) }),
		admin.Counter("tunnel_failed_total", "Connections the other side asked for and whose target could not be reached.", func(t Status) float64 { return float64(t.Failed) }),
		admin.Counter("tunnel_received_bytes_total", "Bytes received through the tunnel.", func(t Status) float64 { return float64(t.BytesIn) }),
		admin.Counter("tunnel_sent_bytes_total", "Bytes sent through the tunnel.", func(t Status) float64 { return float64(t.BytesOut) }),
	},
	Trouble: Status.trouble,
}

// state returns a tunnel's state in a word or two.
func (t Status) state() (admin.Level, string) {
	switch {
	case t.Sessions == 0 && t.Side == Connects:
		return admin.Bad, "not connected"
	case t.Sessions == 0:
		return admin.Neutral, "no peers"
	case t.Suspended > 0:
		return admin.Warn, fmt.Sprintf("%d without a socket", t.Suspended)
	}
	return admin.Good, "connected"
}

// trouble says since when, and why, a tunnel lacks a session.
func (t Status) trouble(now time.Time) string {
	var lacks string
	switch {
	case t.Side == Connects && t.Sessions == 0:
		lacks = "is not connected"
	case t.LastError != "":
		lacks = "is not connected as it should be"
	default:
		return ""
	}
	text := fmt.Sprintf("tunnel %s %s%s", t.Name, lacks, admin.Since(t.FailingSince, now))
	if t.LastError != "" {
		text += ": " + t.LastError
	}
	return text
}
