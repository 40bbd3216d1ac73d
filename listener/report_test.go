package listener_test

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

func TestReportFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out conntest.Log
		s, err := listener.New(listener.Config{Logger: out.Logger()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			s.Report(listener.ReasonUpstreamUnavailable, slog.LevelWarn, "session failed", "upstream", "api")
		}
		s.Report(listener.ReasonTLS, slog.LevelWarn, "other trouble is not hidden by it")
		time.Sleep(time.Second) // fake time
		s.Report(listener.ReasonUpstreamUnavailable, slog.LevelWarn, "session failed", "upstream", "api")
		for text, want := range map[string]int{"upstream=api": 11, "unlogged_before=990": 1, "other trouble": 1} {
			if n := strings.Count(out.String(), text); n != want {
				t.Errorf("%d lines with %q, want %d", n, text, want)
			}
		}
		if n := s.Stats().Errors[listener.ReasonUpstreamUnavailable]; n != 1001 {
			t.Errorf("counted %d, want 1001", n)
		}
	})
}

// TestEndOfReportFlood: the log has the number of lines that were omitted also if no more come, or the listener ends.
func TestEndOfReportFlood(t *testing.T) {
	for name, end := range map[string]func(*listener.Server){
		"no more come":      func(*listener.Server) { time.Sleep(5 * time.Second) }, // fake time
		"the listener ends": (*listener.Server).Close,
	} {
		synctest.Test(t, func(t *testing.T) {
			var out conntest.Log
			s, err := listener.New(listener.Config{Logger: out.Logger()}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 1000 {
				s.LogLimited("down", slog.LevelWarn, "session failed", "number", i)
			}
			end(s)
			s.Close()
			time.Sleep(5 * time.Second)
			if n := strings.Count(out.String(), "session failed"); n != 11 || !strings.Contains(out.String(), "number=999 unlogged_before=989") {
				t.Errorf("%s: %d lines:\n%s", name, n, out.String())
			}
		})
	}
}

// TestReasonsAreAll that stand in stats.go.
func TestReasonsAreAll(t *testing.T) {
	source, err := os.ReadFile("stats.go")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, m := range regexp.MustCompile(`(?m)^\tReason[A-Za-z]+ += "([a-z_]+)"`).FindAllSubmatch(source, -1) {
		named = append(named, string(m[1]))
	}
	if len(named) == 0 || !slices.Equal(listener.Reasons(), named) {
		t.Errorf("listed:\n%q\nnamed:\n%q", listener.Reasons(), named)
	}
}
