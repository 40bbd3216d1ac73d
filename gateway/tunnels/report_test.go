package tunnels_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/tunnels"
	"github.com/headpond/headpond/tunnel"
)

// page returns an admin page of a gateway with these tunnels.
func page(t *testing.T, path string, rows ...tunnels.Status) string {
	t.Helper()
	handler, err := admin.New(admin.Config{Snapshot: func() admin.Snapshot { return admin.Snapshot{Additions: []admin.Addition{tunnels.Shown(rows...)}} }})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Body.String()
}

// TestStatusOfTunnels: other programs read the API's members and the metrics.
func TestStatusOfTunnels(t *testing.T) {
	row := tunnels.StatusOf(tunnels.Connects, tunnel.Stats{
		Name: "far", Connected: []string{""}, Sessions: 1, Suspended: 2, Streams: 3, Made: 4, TurnedAway: 5, Lost: 6, Broken: 7, Resumed: 8, Opened: 9,
		Accepted: 10, Refused: 11, Failed: 12, BytesIn: 13, BytesOut: 14, LastError: errors.New("refused"), FailingSince: time.Unix(1e9, 0).UTC(),
	})
	body := page(t, "/api/v1/status", row)
	if want := `  "tunnels": [
    {
      "name": "far",
      "side": "connect",
      "connected": [
        ""
      ],
      "last_error": "refused",
      "failing_since": "2001-09-09T01:46:40Z",
      "sessions": 1,
      "suspended": 2,
      "streams": 3,
      "made": 4,
      "turned_away": 5,
      "lost": 6,
      "sockets_lost": 7,
      "resumed": 8,
      "opened": 9,
      "accepted": 10,
      "refused": 11,
      "failed": 12,
      "bytes_in": 13,
      "bytes_out": 14
    }
  ]`; !strings.Contains(body, want) {
		t.Errorf("no\n%s\nin\n%s", want, body)
	}
	if body := page(t, "/api/v1/status"); !strings.Contains(body, `  "tunnels": []`) {
		t.Errorf("without tunnels:\n%s", body)
	}
	if body := page(t, "/api/v1/status", tunnels.StatusOf(tunnels.Listens, tunnel.Stats{})); !strings.Contains(body, `"connected": [],`) || !strings.Contains(body, `"failing_since": null,`) {
		t.Errorf("a listener without peers:\n%s", body)
	}
	metrics := page(t, "/metrics", row)
	for name, want := range map[string]string{
		"sessions": "1", "sessions_suspended": "2", "streams": "3", "sessions_total": "4", "turned_away_total": "5", "lost_total": "6", "sockets_lost_total": "7",
		"resumed_total": "8", "opened_total": "9", "accepted_total": "10", "refused_total": "11", "failed_total": "12", "received_bytes_total": "13", "sent_bytes_total": "14",
	} {
		if line := "headpond_tunnel_" + name + `{side="connect",tunnel="far"} ` + want + "\n"; !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

// TestTroubleOfTunnels is in ctl status and on the dashboard, with the state in a word.
func TestTroubleOfTunnels(t *testing.T) {
	lately := time.Now().Add(-10 * time.Second)
	rows := []tunnels.Status{
		tunnels.StatusOf(tunnels.Listens, tunnel.Stats{Name: "main", Connected: []string{"branch"}, Sessions: 1}),
		tunnels.StatusOf(tunnels.Listens, tunnel.Stats{Name: "quiet"}),
		tunnels.StatusOf(tunnels.Connects, tunnel.Stats{Name: "far", LastError: errors.New("refused\x1b[2J"), FailingSince: lately}),
		tunnels.StatusOf(tunnels.Connects, tunnel.Stats{Name: "half", Sessions: 2, Suspended: 1, LastError: errors.New("too many sessions"), FailingSince: lately}),
		tunnels.StatusOf(tunnels.Connects, tunnel.Stats{Name: "new"}),
	}
	var s admin.Status
	if err := json.Unmarshal([]byte(page(t, "/api/v1/status", rows...)), &s); err != nil || len(s.Tables) != 1 {
		t.Fatalf("%v, %+v", err, s)
	}
	since := " since " + lately.Format(time.RFC3339) + " (10s): "
	want := "tunnel far is not connected" + since + "refused\x1b[2J\ntunnel half is not connected as it should be" + since + "too many sessions\ntunnel new is not connected"
	if got := strings.Join(s.Trouble, "\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for i, want := range []string{"good connected", " no peers", "bad not connected", "warn 1 without a socket", "bad not connected"} {
		states := ""
		for j, c := range s.Tables[0].Columns {
			if cell := s.Tables[0].Rows[i][j]; c.Format == "state" {
				states += string(cell.Level) + " " + cell.Text
			}
		}
		if states != want {
			t.Errorf("tunnel %s: %q, want %q", rows[i].Name, states, want)
		}
	}
}
