//go:build unix

package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/link"
	"github.com/headpond/headpond/upstream"
)

// TestOldProcessTalksNonsense: a gateway starts and serves whatever a process says that claims to be the old one.
func TestOldProcessTalksNonsense(t *testing.T) {
	text := strings.Replace(tcpText, "admin: 127.0.0.1:0", `admin: "{admin}"`, 1)
	for name, answers := range map[string]map[string]string{
		"nothing":              {},
		"no objects":           {"state": "7", "status": `"x"`, "sessions": "[1]", "kill": "{}", "cancel": "3"},
		"null":                 {"state": "null", "status": "null", "sessions": "null", "kill": "null", "cancel": "null"},
		"unknown upstreams":    {"state": `{"nobody": {"paused_until": "2999-01-01T00:00:00Z"}}`},
		"impossible endpoints": {"state": `{"echo": {"endpoints": [{"address": "nonsense"}, {"address": ""}]}}`},
		"unknown states":       {"state": `{"echo": {"endpoints": [{"address": "127.0.0.1:1", "out": "dancing", "weight": -7}]}}`},
		"wrong times":          {"state": `{"echo": {"paused_until": "yesterday"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			ours, other, err := link.Pair()
			if err != nil {
				t.Fatal(err)
			}
			fake, err := link.New(other, func(_ context.Context, ask string, _ json.RawMessage) (any, *os.File, error) {
				if text, ok := answers[ask]; ok {
					return json.RawMessage(text), nil, nil
				}
				return nil, nil, link.ErrUnknown
			})
			if err != nil {
				t.Fatal(err)
			}
			defer fake.Close()
			g := gatewaytest.After(t, []gateway.Socket{{Listen: "link 7", File: ours}},
				parse(t, text, "{admin}", conntest.FreeAddress(t), "{listen}", conntest.FreeAddress(t), "{echo}", echoServer(t)))
			if err := exchange(g.Addr("raw"), "hello"); err != nil {
				t.Error(err)
			}
			if all := g.Sessions(); len(all) > 1 {
				t.Errorf("sessions: %v", all)
			}
			if g.Kill("1@7") {
				t.Error("a session of nobody was killed")
			}
			for _, ask := range []string{"state", "change", "status", "sessions", "kill", "cancel", "vacated", "link", "dance"} {
				for _, body := range []any{nil, 7, "x", []int{1}, map[string]any{"echo": 7, "process_id": "x"}} {
					ctx, cancel := context.WithTimeout(t.Context(), conntest.Patience)
					_ = fake.Call(ctx, ask, body, nil)
					cancel()
				}
			}
			if err := exchange(g.Addr("raw"), "still there"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOldProcessBreaksTheLink: neither garbage nor the end of the link keeps a gateway from serving.
func TestOldProcessBreaksTheLink(t *testing.T) {
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", "a\xff\xff\xff\xff", strings.Repeat("q\x00\x00\x00\x02{}", 1000)} {
		ours, other, err := link.Pair()
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.FileConn(other)
		if err != nil {
			t.Fatal(err)
		}
		_ = other.Close()
		go func() {
			_, _ = io.WriteString(c, text)
			_ = c.(*net.UnixConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}()
		g := gatewaytest.After(t, []gateway.Socket{{Listen: "link 7", File: ours}}, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)))
		if err := exchange(g.Addr("raw"), "hello"); err != nil {
			t.Error(err)
		}
		conntest.Eventually(t, "the old process is forgotten", func() bool {
			_, body, err := get(client(t), "http://"+g.Addr("admin")+"/api/v1/old_processes")
			return err == nil && strings.TrimSpace(body) == "[]"
		})
	}
}

// TestOldPauseOfAnotherDay: a pause that the old process hands over does not last longer than one may.
func TestOldPauseOfAnotherDay(t *testing.T) {
	ours, other, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	fake, err := link.New(other, func(_ context.Context, ask string, _ json.RawMessage) (any, *os.File, error) {
		if ask == "state" {
			return json.RawMessage(`{"echo": {"paused_until": "2999-01-01T00:00:00Z"}}`), nil, nil
		}
		return nil, nil, link.ErrUnknown
	})
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	g := gatewaytest.After(t, []gateway.Socket{{Listen: "link 7", File: ours}}, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)))
	if until := g.Snapshot().Upstreams[0].PausedUntil; until.IsZero() || time.Until(until) > upstream.MaxPause {
		t.Errorf("paused until %v", until)
	}
}
