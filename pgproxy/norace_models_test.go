//go:build !race

package pgproxy_test // the machine has no concurrency, and its models take several times as long with the race detector

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy"
)

// TestMachineModel plays random scripts.
func TestMachineModel(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newModelWorld(t, 2, 1+int(seed)%3)
		for range 60 {
			w.step(byte(r.Uint32()), byte(r.Uint32()))
		}
		w.end()
	}
}

// TestMachineModelOfCopies plays random scripts with COPY: its data may have Syncs and requests in it. A client loses its server connection only
// if nobody can know what that answers, and nobody else gets that.
func TestMachineModelOfCopies(t *testing.T) {
	unclear := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 6))
		w := newModelWorld(t, 2, 1+int(seed)%3)
		w.clientsCopy()
		for range 60 {
			w.step(byte(r.Uint32()), byte(r.Uint32()))
		}
		w.end()
		unclear += w.unclear
	}
	if unclear == 0 {
		t.Error("no server connection was lost")
	}
	t.Logf("%d server connections were lost", unclear)
}

// TestMachineModelOfCaches plays random scripts with INSERT, where sequences have a CACHE.
func TestMachineModelOfCaches(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newModelWorld(t, 2, 1+int(seed)%3)
		w.texts = append(slices.Clone(modelTexts), "insert 1", "insert 1", "insert 1")
		w.watchSequences()
		for range 60 {
			w.step(byte(r.Uint32()), byte(r.Uint32()))
		}
		w.end()
	}
}

// TestRenewModel plays random scripts with names of custom settings: clients get what they would get directly, also if their server connections
// are replaced, and none reads names of others.
func TestRenewModel(t *testing.T) {
	renewed := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 5))
		w := newModelWorld(t, 2, 1+int(seed)%3)
		w.texts = []string{"select 1", "begin", "rollback", "fail", "deallocate all"}
		n := w.watchNames()
		for range 60 {
			w.stepNames(r)
		}
		w.end()
		renewed += *n
	}
	if renewed == 0 {
		t.Error("no server connection was replaced")
	}
	t.Logf("%d server connections were replaced", renewed)
}

// TestReplayModel: three clients with different settings share two server connections, and each gets what it would get directly.
func TestReplayModel(t *testing.T) {
	for seed := range uint64(700) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := startSettings(t, seed%2 == 0, nil)
		for range 60 {
			w.step(byte(r.Uint32()), byte(r.Uint32()))
		}
		w.end()
	}
}

// TestRefusedReplayModel: server connections refuse settings now and then. Each request of a client is answered, and no statement runs under
// other settings than the client's.
func TestRefusedReplayModel(t *testing.T) {
	refused := 0
	for seed := range uint64(700) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := startSettings(t, seed%2 == 0, func() bool { return r.IntN(4) == 0 })
		w.texts = []string{"select 1", "select 2", "begin", "rollback", "fail"}
		for range 60 {
			w.step(byte(r.Uint32()), byte(r.Uint32()))
		}
		w.end()
		for i, c := range w.clients {
			if !c.refused {
				continue
			}
			refused++
			settings := []string{"UTC for x", "Asia/Tokyo for x", "UTC for y"}[i]
			for _, text := range c.got {
				if strings.HasPrefix(text, "DataRow") && !strings.Contains(text, settings) {
					w.fail("%s got %s", c.name, text)
				}
			}
		}
	}
	if refused == 0 {
		t.Error("no refusal")
	}
}

// TestJudgeLongTexts has texts judged that take for ever where something is read again and again.
func TestJudgeLongTexts(t *testing.T) {
	for _, part := range []string{"create temp table t(); ", "$a ", "$a$ $b$ ", "/* ", "f(/**/", "on conflict (a", "set_config('", "do $$", "'", `"a".`, "insert into temp on commit drop ", " create temp x"} {
		for _, behind := range []string{"", "; do $$ $$"} {
			sql := strings.Repeat(part, 200<<10/len(part)) + behind
			if part == " create temp x" {
				sql = "on commit drop" + sql
			}
			if got := pgproxy.Judged(sql); strings.HasPrefix(part, "create temp") && !has(got, "temporary objects") {
				t.Errorf("%s…%s: %q", part, behind, got)
			}
		}
	}
}
