package acme_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/mholt/acmez/v3/acme"

	"github.com/headpond/headpond/acme"
	"github.com/headpond/headpond/internal/conntest"
)

// TestStorageTrouble: a name is not given up because of its files. Operators see why there is no certificate.
func TestStorageTrouble(t *testing.T) {
	acme.RetryAfter(t, 50*time.Millisecond)
	p, folder, echo := startPebble(t, pebbleConfig{}), t.TempDir(), conntest.Serve(t, conntest.Echo)
	section := p.section(folder) + twoListenersFor("[a.test]", echo)
	t.Run("obtained", func(t *testing.T) {
		g := run(t, folder, section)
		p.tls.to(g.Addr("t"))
		g.certified("a.test")
	})
	files, err := filepath.Glob(filepath.Join(folder, "certificates", "*", "a.test", "a.test.crt"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files of certificates: %v %v", files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := run(t, folder, section)
	p.tls.to(g.Addr("t"))
	conntest.Eventually(t, "the trouble is shown", func() bool {
		row := g.rows()["a.test"]
		return row.State == acme.StateMissing && strings.Contains(row.LastError, "the stored certificate cannot be used")
	})
	if line := g.log.Line("no certificate was obtained", "a.test"); !strings.Contains(line, "storage") {
		t.Errorf("log: %s", line)
	}
	if err := os.WriteFile(files[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the certificate is used, and the trouble over", func() bool {
		row := g.rows()["a.test"]
		return row.State == acme.StateValid && row.LastError == "" && row.Obtained == 0
	})
}

// TestCloseWaits: once Close has returned nothing is written to the storage any more, and its locks are released.
func TestCloseWaits(t *testing.T) {
	p, folder, echo := startPebble(t, pebbleConfig{}), t.TempDir(), conntest.Serve(t, conntest.Echo)
	g := run(t, folder, p.section(folder)+twoListenersFor("[a.test]", echo)) // the authority does not reach it: the order goes on
	held := func() []string {
		names, err := filepath.Glob(filepath.Join(folder, "locks", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	conntest.Eventually(t, "the order is under way", func() bool {
		return g.rows()["a.test"].State == acme.StateOrdering && len(held()) > 0
	})
	g.Close()
	if names := held(); len(names) > 0 {
		t.Errorf("locks are held after Close: %v", names)
	}
}

// TestRetries: attempts go on without an end, at the most 6 hours apart.
func TestRetries(t *testing.T) {
	minutes := []time.Duration{1, 2, 2, 5, 10, 20, 40, 80, 160, 320, 360, 360}
	for i := range minutes {
		minutes[i] *= time.Minute
	}
	if got := acme.Retries(len(minutes)); !slices.Equal(got, minutes) {
		t.Errorf("attempts after %v", got)
	}
}

// TestStagingErrors: only what is wrong with a name counts at a staging directory.
func TestStagingErrors(t *testing.T) {
	for kind, want := range map[string]bool{
		protocol.ProblemTypeConnection: true, protocol.ProblemTypeUnauthorized: true, protocol.ProblemTypeCAA: true,
		protocol.ProblemTypeServerInternal: false, protocol.ProblemTypeRateLimited: false, protocol.ProblemTypeMalformed: false,
	} {
		if got := acme.OfName(fmt.Errorf("order: %w", protocol.Problem{Type: kind})); got != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
	if acme.OfName(os.ErrDeadlineExceeded) {
		t.Error("a deadline is about no name")
	}
}
