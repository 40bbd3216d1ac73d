package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

func change(action upstream.Action, address string) upstream.Change {
	return upstream.Change{Action: action, Endpoint: upstream.Endpoint{Address: address}}
}

func weigh(address string, weight int) upstream.Change {
	return upstream.Change{Action: upstream.WeighEndpoint, Endpoint: upstream.Endpoint{Address: address, Weight: weight}}
}

// shown is the status of endpoints: address, "!" if it is not in use, and its override.
func shown(s upstream.Status) string {
	var list []string
	for _, e := range s.Endpoints {
		text := e.Address
		if e.Removed {
			text += "!"
		}
		if e.Override != "" {
			text += "=" + e.Override
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestChangeEndpoint changes endpoints beside a Source, whose next sets undo nothing.
func TestChangeEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, src := newBackends(), newPusher()
		cfg := b.config()
		cfg.Source = src
		u := start(t, cfg)
		push := func(addrs ...string) func() error { return func() error { return src.push(addrs...) } }
		do := func(c upstream.Change) func() error { return func() error { return u.ChangeEndpoint(c) } }
		for i, step := range []struct {
			do   func() error
			fail error
			want string
		}{
			{do(change(upstream.DrainEndpoint, "a:1")), upstream.ErrUnknownEndpoint, ""},
			{push("a:1", "b:1"), nil, "a:1 b:1"},
			{do(change(upstream.DrainEndpoint, "a:1")), nil, "a:1!=drained b:1"},
			{do(change(upstream.DrainEndpoint, "a:1")), nil, "a:1!=drained b:1"},
			{push("a:1", "b:1", "c:1"), nil, "a:1!=drained b:1 c:1"},
			{do(change(upstream.RemoveEndpoint, "c:1")), nil, "a:1!=drained b:1 c:1!=removed"},
			{do(change(upstream.RemoveEndpoint, "b:1")), upstream.ErrLastEndpoint, "a:1!=drained b:1 c:1!=removed"},
			{push("c:1", "b:1", "a:1"), nil, "a:1!=drained b:1 c:1!=removed"},
			{do(change(upstream.AddEndpoint, "d:1")), nil, "a:1!=drained b:1 c:1!=removed d:1=added"},
			{do(change(upstream.AddEndpoint, "d:1")), upstream.ErrEndpointInUse, "a:1!=drained b:1 c:1!=removed d:1=added"},
			{do(weigh("d:1", 3)), nil, "a:1!=drained b:1 c:1!=removed d:1=added"},
			{do(weigh("b:1", 2)), nil, "a:1!=drained b:1=weight c:1!=removed d:1=added"},
			{push("b:1", "d:1"), nil, "a:1!=drained b:1=weight c:1!=removed d:1=added"}, // known no more, and still drained
			{do(change(upstream.RemoveEndpoint, "c:1")), nil, "a:1!=drained b:1=weight d:1=added"},
			{push("b:1", "c:1"), nil, "a:1!=drained b:1=weight c:1 d:1=added"},
			{do(weigh("b:1", 0)), nil, "a:1!=drained b:1 c:1 d:1=added"},
			{do(change(upstream.AddEndpoint, "a:1")), nil, "a:1=added b:1 c:1 d:1=added"},
			{do(change(upstream.RemoveEndpoint, "d:1")), nil, "a:1=added b:1 c:1"},
			{do(change("destroy", "b:1")), upstream.ErrConfig, "a:1=added b:1 c:1"},
			{do(weigh("b:1", upstream.MaxWeight+1)), upstream.ErrConfig, "a:1=added b:1 c:1"},
			{do(change(upstream.AddEndpoint, "nonsense")), upstream.ErrConfig, "a:1=added b:1 c:1"},
		} {
			if err := step.do(); !errors.Is(err, step.fail) || (err == nil) != (step.fail == nil) {
				t.Fatalf("step %d: %v, want %v", i, err, step.fail)
			}
			if got := shown(u.Status()); got != step.want {
				t.Fatalf("step %d: %s, want %s", i, got, step.want)
			}
			if step.want == "" {
				continue
			}
			for address := range used(t, u, 30) {
				if !slices.Contains(strings.Fields(step.want), address) && !strings.Contains(step.want, address+"=added") && !strings.Contains(step.want, address+"=weight") {
					t.Fatalf("step %d: a lease of %s, want %s", i, address, step.want)
				}
			}
		}
		if n := b.logged(`msg="endpoints changed" upstream=api by=operator removed=a:1 endpoints=1`); n != 1 {
			t.Errorf("the drain is in the log %d times, want once:\n%s", n, b.log.String())
		}
		u.Close()
		if err := u.ChangeEndpoint(change(upstream.DrainEndpoint, "a:1")); !errors.Is(err, pool.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestOnlyDrainedLeft: an upstream whose other endpoints are gone uses those that an operator took out, and no longer once there is another.
func TestOnlyDrainedLeft(t *testing.T) {
	for _, action := range []upstream.Action{upstream.DrainEndpoint, upstream.RemoveEndpoint} {
		t.Run(string(action), func(t *testing.T) { onlyOutLeft(t, action) })
	}
}

func onlyOutLeft(t *testing.T, action upstream.Action) {
	synctest.Test(t, func(t *testing.T) {
		b, src := newBackends(), newPusher()
		cfg := b.config()
		cfg.Source = src
		u := start(t, cfg)
		for _, step := range []struct {
			set  []string
			want string
		}{{[]string{"a:1", "b:1"}, "b:1"}, {[]string{"a:1"}, "a:1"}, {[]string{"c:1", "a:1"}, "c:1"}} {
			if err := src.push(step.set...); err != nil {
				t.Fatal(err)
			}
			if step.want == "b:1" {
				if err := u.ChangeEndpoint(change(action, "a:1")); err != nil {
					t.Fatal(err)
				}
			}
			if got := used(t, u, 10); got[step.want] != 10 {
				t.Errorf("set %v: leases %v, want leases of %s", step.set, got, step.want)
			}
		}
	})
}

// TestDrainedLeasesContinue: leases of a drained endpoint continue; those of a removed endpoint end by OnRemoved, drained
// before or not.
func TestDrainedLeasesContinue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1", "b:1", "c:1")
		cfg.Balance, cfg.OnRemoved = upstream.RoundRobin, upstream.CloseRemoved
		var mu sync.Mutex
		interrupted := map[string]int{}
		cfg.Interrupt = func(c *conn, why error) {
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(why, upstream.ErrRemoved) {
				interrupted[c.endpoint]++
			}
		}
		u := start(t, cfg)
		leases := []upstream.Lease[*conn]{acquire(t, u), acquire(t, u), acquire(t, u)}
		for _, step := range []struct {
			c    upstream.Change
			want map[string]int
		}{
			{change(upstream.DrainEndpoint, "a:1"), map[string]int{}},
			{change(upstream.RemoveEndpoint, "b:1"), map[string]int{"b:1": 1}},
			{change(upstream.RemoveEndpoint, "a:1"), map[string]int{"a:1": 1, "b:1": 1}},
		} {
			if err := u.ChangeEndpoint(step.c); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			mu.Lock()
			if !maps.Equal(interrupted, step.want) {
				t.Errorf("%v: interrupted %v, want %v", step.c, interrupted, step.want)
			}
			mu.Unlock()
		}
		for _, l := range leases {
			l.Release()
		}
		if got := shown(u.Status()); got != "a:1!=removed b:1!=removed c:1" {
			t.Error(got)
		}
	})
}

// TestOverridesAreSettings: an Update replaces the overrides by its own, for a new Upstream too.
func TestOverridesAreSettings(t *testing.T) {
	b := newBackends()
	u := start(t, b.config("a:1", "b:1"))
	c := change(upstream.DrainEndpoint, "a:1")
	c.Keep = true
	if err := errors.Join(u.ChangeEndpoint(c), u.ChangeEndpoint(weigh("a:1", 5)), u.ChangeEndpoint(weigh("b:1", 7))); err != nil {
		t.Fatal(err)
	}
	kept := slices.DeleteFunc(u.Overrides(), func(o upstream.Override) bool { return !o.Keep })
	s := upstream.Settings{Endpoints: upstream.Endpoints("b:1", "a:1"), Overrides: kept}
	if err := u.Update(s); err != nil {
		t.Fatal(err)
	}
	next := b.config()
	next.Settings = s
	for _, u := range []*upstream.Upstream[*conn]{u, start(t, next)} {
		if st := u.Status(); shown(st) != "a:1!=drained b:1" || !st.Endpoints[1].Kept {
			t.Errorf("%+v", st)
		}
	}
	if err := u.Update(upstream.Settings{Endpoints: s.Endpoints}); err != nil || shown(u.Status()) != "a:1 b:1" {
		t.Errorf("%v %v", shown(u.Status()), err)
	}
	s.Overrides = []upstream.Override{{Endpoint: upstream.Endpoint{Address: "a:1"}, Out: "lost"}}
	if err := u.Update(s); !errors.Is(err, upstream.ErrConfig) {
		t.Error(err)
	}
}

// operators is a plain model of endpoints that sources and operators change.
type operators struct {
	told, added map[string]bool
	out         map[string]upstream.Action
	weight      map[string]int
}

// set returns the endpoints in use, with weights.
func (m *operators) set() map[string]int {
	in, drained, removed := map[string]int{}, map[string]int{}, map[string]int{}
	for _, a := range slices.Concat(slices.Collect(maps.Keys(m.told)), slices.Collect(maps.Keys(m.added))) {
		switch m.out[a] {
		case upstream.DrainEndpoint:
			drained[a] = max(m.weight[a], 1)
		case upstream.RemoveEndpoint:
			removed[a] = max(m.weight[a], 1)
		default:
			in[a] = max(m.weight[a], 1)
		}
	}
	switch {
	case len(in) > 0:
		return in
	case len(drained) > 0:
		return drained
	}
	return removed
}

// TestOverridesAgainstModel compares random changes and sets with the model.
func TestOverridesAgainstModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"a:1", "b:1", "c:1", "d:1", "e:1"}
		random := rand.New(rand.NewPCG(20, 26))
		b, src := newBackends(), newPusher()
		cfg := b.config()
		cfg.Source = src
		u := start(t, cfg)
		m := &operators{map[string]bool{}, map[string]bool{}, map[string]upstream.Action{}, map[string]int{}}
		for i := range 3000 {
			what := ""
			if random.IntN(4) == 0 {
				set := slices.DeleteFunc(slices.Clone(names), func(string) bool { return random.IntN(2) == 0 })
				if len(set) == 0 {
					continue
				}
				what = fmt.Sprint("push ", set)
				if err := src.push(set...); err != nil {
					t.Fatal(err)
				}
				clear(m.told)
				for _, a := range set {
					m.told[a] = true
				}
			} else {
				c := weigh(names[random.IntN(len(names))], random.IntN(3))
				c.Action = upstream.Actions()[random.IntN(4)]
				what = fmt.Sprint(c.Action, c.Endpoint)
				before := maps.Clone(m.set())
				err := u.ChangeEndpoint(c)
				if m.refuses(c) != (err != nil) {
					t.Fatalf("step %d: %s: %v, with %v in use", i, what, err, before)
				}
			}
			got := map[string]int{}
			for _, e := range u.Status().Endpoints {
				if !e.Removed {
					got[e.Address] = e.Weight
				}
			}
			if want := m.set(); !maps.Equal(got, want) {
				t.Fatalf("step %d, after %s: in use %v, want %v", i, what, got, want)
			}
		}
	})
}

// refuses changes the model, or reports that the change is not possible.
func (m *operators) refuses(c upstream.Change) bool {
	a := c.Endpoint.Address
	old := operators{m.told, maps.Clone(m.added), maps.Clone(m.out), maps.Clone(m.weight)}
	isKnown := m.told[a] || m.added[a] || m.out[a] != "" || m.weight[a] > 0
	switch c.Action {
	case upstream.AddEndpoint:
		if m.out[a] == "" && (m.told[a] || m.added[a]) {
			return true
		}
		if delete(m.out, a); !m.told[a] {
			m.added[a] = true
		}
		if c.Endpoint.Weight > 0 {
			m.weight[a] = c.Endpoint.Weight
		}
		return false
	case upstream.WeighEndpoint:
		if isKnown {
			m.weight[a] = c.Endpoint.Weight
		}
		return !isKnown
	case upstream.DrainEndpoint:
		m.out[a] = c.Action
	case upstream.RemoveEndpoint:
		if m.out[a] = c.Action; !m.told[a] {
			delete(m.out, a)
			delete(m.added, a)
			delete(m.weight, a)
		}
	}
	inUse := 0
	for name := range m.set() {
		if m.out[name] == "" {
			inUse++
		}
	}
	if !isKnown || inUse == 0 {
		*m = old
		return true
	}
	return false
}

func ExampleUpstream_ChangeEndpoint() {
	b := newBackends()
	u, err := upstream.New(b.config("10.0.0.1:80", "10.0.0.2:80"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer u.Close()
	fmt.Println(u.ChangeEndpoint(change(upstream.DrainEndpoint, "10.0.0.1:80")))
	l, err := u.Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Release()
	fmt.Println(l.Endpoint())
	fmt.Println(u.ChangeEndpoint(change(upstream.RemoveEndpoint, "10.0.0.2:80")))
	// Output:
	// <nil>
	// 10.0.0.2:80
	// upstream "api": endpoint "10.0.0.2:80": upstream: it is the last endpoint in use; add another one first
}
