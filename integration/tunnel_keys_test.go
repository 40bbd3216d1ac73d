package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// TestTunnelKeys: peers have their own keys, which a reload rotates and revokes.
func TestTunnelKeys(t *testing.T) {
	branchEcho, _ := startEcho(t)
	depotEcho, _ := startEcho(t)
	peers := address(t)
	farText := func(branchKeys string) string {
		return fmt.Sprintf(`listeners:
  - name: peers
    protocol: tunnel
    listen: %s
    tunnel:
      peers:
        branch: {keys: [%s], allow: ["%s"]}
        depot: {keys: [the key of the depot], upstreams: [echo]}
upstreams:
  echo: {endpoints: ["%s"]}
`, peers, branchKeys, branchEcho, depotEcho)
	}
	const oldKey, newKey = "the old key of branch", "the new key of branch"
	nearText := func(as, key, listen, endpoint string) string {
		return strings.NewReplacer("as: near", as, tunnelPSK, key).Replace(nearConfig(peers, listen, endpoint))
	}
	far := startGateway(t, farText(oldKey))
	branchRaw, depotRaw, thiefRaw := address(t), address(t), address(t)
	branch := startGateway(t, nearText("as: branch", oldKey, branchRaw, branchEcho))
	startGateway(t, nearText("sessions: 1", "the key of the depot", depotRaw, "upstream:echo")) // identified by its key
	startGateway(t, nearText("as: branch", "the key of the depot", thiefRaw, branchEcho))
	far.awaitLog("no session with a peer", "peer=branch", "auth_failed", "another PSK")
	eventually(t, "both are let in", func() error { return errors.Join(exchange(branchRaw, "branch"), exchange(depotRaw, "depot")) })
	if err := exchange(thiefRaw, "x"); err == nil {
		t.Error("one peer has another's name")
	}
	if _, body := far.get("/api/v1/status"); !strings.Contains(body, `"depot"`) {
		t.Errorf("the key does not say who the peer is: %s", body)
	}

	far.reload(farText(oldKey+", "+newKey), "applied") // rotation: at first both keys are valid
	held := hold(t, branchRaw)
	branch.reload(nearText("as: branch", newKey, branchRaw, branchEcho), "applied")
	eventually(t, "the new key is used", func() error { return exchange(branchRaw, "branch") })
	if _, err := held.Write([]byte("still")); err != nil {
		t.Error(err)
	}
	revoked := address(t)
	thief := startGateway(t, nearText("as: branch", oldKey, revoked, branchEcho)) // someone with a copy of the old key
	stolen := hold(t, revoked)
	far.reload(farText(newKey), "applied")
	if _, err := stolen.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection of a key that was revoked: %v", err)
	}
	far.awaitLog("session over", "peer=branch", "revoked")
	thief.awaitLog("cannot connect", "denied")
	if err := exchange(revoked, "x"); err == nil {
		t.Error("a key that was revoked is good")
	}
	eventually(t, "those with a good key go on", func() error { return errors.Join(exchange(branchRaw, "branch"), exchange(depotRaw, "depot")) })
}

// TestTunnelFailover: with several addresses another gateway takes over when the one in use is killed.
func TestTunnelFailover(t *testing.T) {
	echoAddr, _ := startEcho(t)
	first, second, raw := address(t), address(t), address(t)
	a := startGateway(t, farConfig(first, "", map[string]string{"echo": echoAddr}))
	startGateway(t, farConfig(second, "", map[string]string{"echo": echoAddr}))
	near := startGateway(t, strings.Replace(nearConfig(first, raw, "upstream:echo"), fmt.Sprintf("%q", first), fmt.Sprintf("[%q, %q]", first, second), 1))
	hold(t, raw)
	a.killed(t)
	near.awaitLog("connection lost, session kept", "tunnel=far") // a connection begun before that waits for its session to resume
	eventually(t, "the other is used", func() error {
		c, err := net.DialTimeout("tcp", raw, time.Second)
		if err != nil {
			return err
		}
		_ = c.Close()
		return exchange(raw, "hello")
	})
	near.awaitLog("no way to the server of a session, trying another", "tunnel=far")
	startGateway(t, farConfig(first, "", map[string]string{"echo": echoAddr}))
	near.awaitLog("session over", "level=WARN", "not resumed") // the other gateway does not know the session
}
