package integration

import (
	"encoding/json"
	"os"
	"testing"
)

// TestEngineIsReported: the log and the dashboard show which engine runs, and why.
func TestEngineIsReported(t *testing.T) {
	g := startGateway(t, tcpConfig(address(t), address(t), ""))
	_, body := g.get("/api/v1/status")
	var s struct {
		Engine string
		Reason string `json:"engine_reason"`
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	asked := os.Getenv("HEADPOND_ENGINE")
	if s.Engine == "" || s.Reason == "" || asked != "" && asked != "auto" && (s.Engine != asked || s.Reason != "configured") {
		t.Errorf("asked for %q: engine %q, because %q", asked, s.Engine, s.Reason)
	}
	g.awaitLog("starting", s.Engine, "reason", s.Reason)
}
