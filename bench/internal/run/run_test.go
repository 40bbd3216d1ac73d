package run_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// diary makes arms and meters that record their calls.
type diary struct {
	mu     sync.Mutex // arms start and stop at the same time
	events []string
	fail   string // the event that fails
	end    func() // called at the 5th round
	rounds int
}

func (d *diary) note(event string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, event)
	if event == d.fail {
		return errors.New("it broke")
	}
	return nil
}

type fakeArm struct {
	d    *diary
	name string
}

func (a fakeArm) Stop() { _ = a.d.note("stop " + a.name) }

type fakeMeter struct {
	fakeArm
	warm bool
}

func (m *fakeMeter) Round(ctx context.Context, _ time.Duration, rate float64) (result.Sample, error) {
	if !m.warm {
		m.warm = true
		return result.Sample{}, m.d.note("warm " + m.name)
	}
	if m.d.rounds++; m.d.rounds == 5 && m.d.end != nil {
		m.d.end()
		return result.Sample{}, ctx.Err()
	}
	h := new(hist.Histogram)
	h.Record(time.Millisecond)
	throughput := map[string]float64{"a": 1000, "b": 500}[m.name]
	return result.Sample{Values: map[string]float64{result.Throughput: throughput, "rate": rate}, Latency: h}, m.d.note(m.name)
}

func (m *fakeMeter) Close() error { return m.d.note("close " + m.name) }

func (d *diary) group() run.Group {
	g := run.Group{Name: "fake"}
	for _, name := range []string{"a", "b"} {
		g.Arms = append(g.Arms, run.Arm{Name: name, Start: func(context.Context) (run.Stopper, error) { return fakeArm{d, name}, d.note("start " + name) }})
	}
	open := func(_ context.Context, name string, s run.Stopper) (run.Meter, error) {
		return &fakeMeter{fakeArm: s.(fakeArm)}, nil
	}
	metrics := []string{result.Throughput}
	g.Cases = []run.Case{
		{Info: result.Case{ID: "full", Metrics: metrics}, Baselines: []string{"absent", "b"}, Open: open},
		{Info: result.Case{ID: "paced", Metrics: metrics}, Baselines: []string{"b"}, Open: open, RateOf: "full", Load: 0.7, Arms: []string{"a"}, Rounds: 2},
	}
	return g
}

func runner(t *testing.T, rounds int) *run.Runner {
	t.Helper()
	return &run.Runner{
		Results: &result.Results{Schema: result.Schema, Settings: result.Settings{Rounds: rounds, Seconds: 0.001}},
		Path:    filepath.Join(t.TempDir(), "results.json"), Log: io.Discard,
	}
}

func TestArmsTakeTurns(t *testing.T) {
	d := &diary{}
	r := runner(t, 6)
	r.Others = func() func() float64 { return func() float64 { return 0.25 } }
	if err := r.Run(t.Context(), []run.Group{d.group()}); err != nil {
		t.Fatal(err)
	}
	want := "start a, start b, warm a, warm b, a, b, a, b, "
	slices.Sort(d.events[:2])
	got := strings.Join(d.events, ", ")
	starts := len(slices.DeleteFunc(slices.Clone(d.events), func(e string) bool { return e != "start a" }))
	if !strings.HasPrefix(got, want) {
		t.Errorf("%s\nwant first %s", got, want)
	}
	if c := r.Results.Case("full"); c.Baseline != "b" || c.Others != 0.25 || len(c.Arm("a").Rounds) != 6 || c.Arm("a").Latency.Count() != 6 {
		t.Errorf("%+v", c)
	}
	if starts != 3 {
		t.Errorf("arm a was started %d times, want anew for each third of the rounds: %s", starts, got)
	}
	c := r.Results.Case("paced")
	if c.Rate != 700 || len(c.Arm("a").Rounds) != 2 || c.Arm("b") != nil {
		t.Errorf("paced: rate %v, arms %+v; want 70 %% of what arm a alone did, two rounds", c.Rate, c.Arms)
	}
	for _, stop := range []string{"stop a", "stop b", "close a", "close b"} {
		if !slices.Contains(d.events, stop) {
			t.Errorf("no %q in %s", stop, got)
		}
	}
}

// TestInterruptKeepsFinishedRounds interrupts, and resumes from the file.
func TestInterruptKeepsFinishedRounds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	first := &diary{end: cancel}
	r := runner(t, 3)
	if err := r.Run(ctx, []run.Group{first.group()}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if !slices.Contains(first.events, "stop a") || !slices.Contains(first.events, "stop b") {
		t.Errorf("arms run on: %v", first.events)
	}
	saved, err := result.Load(r.Path)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(saved.Case("full").Arm("a").Rounds); n != 2 {
		t.Fatalf("%d rounds of a are saved, want 2", n)
	}
	second := &diary{}
	r.Results = saved
	if err := r.Run(t.Context(), []run.Group{second.group()}); err != nil {
		t.Fatal(err)
	}
	if n := len(slices.DeleteFunc(slices.Clone(second.events), func(e string) bool { return e != "b" })); n != 1 {
		t.Errorf("b was measured %d times after the resumption, want once: %v", n, second.events)
	}
	third := &diary{}
	if err := r.Run(t.Context(), []run.Group{third.group()}); err != nil || len(third.events) > 0 {
		t.Errorf("a complete run was taken up again: %v, %v", third.events, err)
	}
}

// hanging is a meter that ends only when its context ends.
type hanging struct{}

func (hanging) Stop()        {}
func (hanging) Close() error { return nil }
func (hanging) Round(ctx context.Context, _ time.Duration, _ float64) (result.Sample, error) {
	<-ctx.Done()
	return result.Sample{}, ctx.Err()
}

func TestAnArmThatHangsIsGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	synctest.Test(t, func(t *testing.T) {
		r := &run.Runner{Results: &result.Results{Settings: result.Settings{Rounds: 1, Seconds: 1}}, Path: path, Log: io.Discard}
		err := r.Run(t.Context(), []run.Group{{
			Arms: []run.Arm{{Name: "a", Start: func(context.Context) (run.Stopper, error) { return hanging{}, nil }}},
			Cases: []run.Case{{Info: result.Case{ID: "x", Metrics: []string{result.CPU}}, Open: func(context.Context, string, run.Stopper) (run.Meter, error) {
				return hanging{}, nil
			}}},
		}})
		if a := r.Results.Case("x").Arm("a"); err != nil || !strings.Contains(a.Error, "no end 1m0s after") {
			t.Errorf("%v, %q", err, a.Error)
		}
	})
}

func TestWhatFailsIsToldAndTheRestMeasured(t *testing.T) {
	for _, fail := range []string{"start a", "warm a", "a"} {
		d := &diary{fail: fail}
		r := runner(t, 2)
		if err := r.Run(t.Context(), []run.Group{d.group()}); err != nil {
			t.Fatal(err)
		}
		c := r.Results.Case("full")
		if a := c.Arm("a"); !strings.Contains(a.Error, "it broke") || len(a.Rounds) != 0 {
			t.Errorf("%s fails: %+v", fail, a)
		}
		if len(c.Arm("b").Rounds) != 2 {
			t.Errorf("%s fails: b has %d rounds", fail, len(c.Arm("b").Rounds))
		}
	}
	g := (&diary{}).group()
	g.Prepare = func(context.Context) error { return errors.New("no server") }
	r := runner(t, 2)
	if err := r.Run(t.Context(), []run.Group{g}); err != nil || len(r.Results.Missing) != 1 || !strings.Contains(r.Results.Missing[0], "no server") {
		t.Errorf("%v, missing %q", err, r.Results.Missing)
	}
}
