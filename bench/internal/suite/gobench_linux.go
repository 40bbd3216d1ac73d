package suite

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/bench/internal/proc"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// goSuite is a package of bench/ with testing.B benchmarks.
type goSuite struct {
	name, workload, title string
	baseline              string
	floor                 string            // the arm whose figures are subtracted in a second table
	claims                map[string]string // benchmark → figure published by the study
	because               string
	quick                 *regexp.Regexp // the cases of a quick run; nil = all
	variants              []goVariant    // how it is run; nil = once, without changes
	share                 float64        // length of a round as a fraction of other suites' rounds
	more                  func(*Env, goBenchmark) run.Group
}

// goVariant is a way to run benchmarks. Each variant makes a case of its own.
type goVariant struct {
	suffix string // appended to the case's name
	args   []string
	env    []string
	quick  bool           // in quick runs too
	only   *regexp.Regexp // the cases; nil = all
}

// processors runs benchmarks with -cpu 1, 2 and 4, with and without garbage collection.
func processors() []goVariant {
	var variants []goVariant
	for _, gc := range []string{"", "off"} {
		for _, cpu := range []string{"1", "2", "4"} {
			v := goVariant{suffix: "/cpu=" + cpu, args: []string{"-test.cpu", cpu}, quick: cpu == "2" && gc == ""}
			if gc != "" {
				v.suffix, v.env = v.suffix+"/gogc="+gc, []string{"GOGC=" + gc}
			}
			variants = append(variants, v)
		}
	}
	return variants
}

var goSuites = []goSuite{
	{name: "pool", workload: "W6", title: "pool core", baseline: "vitesslike", share: 0.25, quick: regexp.MustCompile(`HandOff|g=(1|8|64)$|g=8/size=1$|g=64/size=10$`), variants: []goVariant{
		{quick: true}, {suffix: "/cpu=1", args: []string{"-test.cpu", "1"}, only: regexp.MustCompile(`^PoolAcquire/g=(1$|64$|8/size=1$|64/size=10$)|^PoolHeld`)},
	}},
	{
		name: "mux", workload: "W4", title: "mux", baseline: "raw", share: 0.25,
		claims: map[string]string{
			"RoundTrip100B": "20.1 µs, 1,176 B, 20 allocations", "RoundTrip1MiB": "5.7 ms, 6.5 MB, 260 allocations", "RoundTrip200KiB": "317 µs, 1.28 MB, 68 allocations",
			"RoundTrip1KiB": "21.7 µs pooled", "Send1KiB": "7.2 µs, 10 allocations", "Recv1KiB": "7.3 µs",
		},
		because:  "the study's figures predate its own demultiplexer, and it never measured raw TCP (arm raw)",
		variants: []goVariant{{quick: true}, {suffix: "/tls", env: []string{"HEADPOND_TLS=1"}, only: regexp.MustCompile(`^(RoundTrip|Send|Recv|Channels)`)}},
		quick:    regexp.MustCompile(`^(RoundTrip100B|RoundTrip1MiB|Send1KiB|Channels256)`),
	},
	{name: "forward", workload: "W2", title: "HTTP forwarding", baseline: "stdlib", share: 0.25, claims: map[string]string{"1MiB": "1.08 → 0.48 ms, 2.37 → 0.08 MB, 232 → 109 allocations (old → stdlib)"},
		because: "machine and Go version are others"},
	{name: "peers", workload: "W10", title: "HTTP through two nodes", baseline: "https", floor: "harness", share: 1},
	{
		name: "route", workload: "W5", title: "typed handlers", baseline: "gin", floor: "harness", share: 0.125, variants: processors(), more: (*Env).routeServers,
		claims: map[string]string{
			"json": "20,782 ns pooled, 22,206 not", "form": "28,867 pooled, 27,392 not", "large": "24,970 pooled, 28,751 not",
			"parallel": "7,840 pooled, 5,798 not", "get": "15,536 pooled, 17,237 not",
		},
		because: "the study's two arms both pooled gin's context and paid httptest's 4 KiB (arm harness), and its form arm measured its error path",
	},
}

// goArms are the parts of benchmark names that name an arm.
var goArms = []string{
	"headpond", "puddle", "vitesslike", "channel", "mutexslice", "syncpool", "databasesql",
	"kernel", "raw", "resumable", "tcp", "https", "yamux", "smux", "study", "studypooled", "harness", "gin", "echo", "huma", "fuego", "allocated", "pooled", "ginroute", "old", "stdlib", "gateway", "quic",
}

// goBenchmark is the compiled benchmarks of a package.
type goBenchmark struct {
	dir, program string
}

// Stop does nothing: each round is a process of its own.
func (goBenchmark) Stop() {}

// goGroups compiles a package's benchmarks, lists them and makes a case of each.
func (e *Env) goGroups(s goSuite) ([]run.Group, error) {
	b, err := e.compile(s)
	if err != nil {
		return nil, err
	}
	found, err := b.list()
	if err != nil {
		return nil, err
	}
	variants := s.variants
	if variants == nil {
		variants = []goVariant{{quick: true}}
	}
	g := run.Group{Name: s.title}
	for _, v := range variants {
		if v.quick || !e.Quick {
			g.Cases = append(g.Cases, e.goCases(s, found, v)...)
		}
	}
	for _, c := range g.Cases {
		for _, name := range c.Arms {
			if !slices.ContainsFunc(g.Arms, func(a run.Arm) bool { return a.Name == name }) {
				g.Arms = append(g.Arms, run.Arm{Name: name, Start: func(context.Context) (run.Stopper, error) { return b, nil }})
			}
		}
	}
	if s.more != nil {
		return []run.Group{g, s.more(e, b)}, nil
	}
	return []run.Group{g}, nil
}

// compile compiles a package's benchmarks.
func (e *Env) compile(s goSuite) (goBenchmark, error) {
	if e.Source == "" {
		return goBenchmark{}, fmt.Errorf("suite %s runs benchmarks of the source tree: run headpond bench within it", s.name)
	}
	b := goBenchmark{dir: filepath.Join(e.Source, "bench", s.name), program: filepath.Join(e.Starter.Group.Dir, s.name+".test")}
	_, _ = fmt.Fprintln(e.Log, "building the benchmarks of", s.name)
	build := exec.Command("go", "test", "-c", "-o", b.program, ".")
	build.Dir = b.dir
	if os.Getenv("GOTOOLCHAIN") == "" { // use the toolchain that built this program: it is installed
		build.Env = append(os.Environ(), "GOTOOLCHAIN="+runtime.Version()+"+auto")
	}
	if out, err := proc.Output(build); err != nil {
		return b, fmt.Errorf("build the benchmarks of %s: %w\n%s", b.dir, err, out)
	}
	info, err := buildinfo.ReadFile(b.program)
	if err != nil {
		return b, err
	}
	e.addVersions(info)
	return b, nil
}

// peerModules maps the peers that are linked into benchmarks to their modules.
var peerModules = map[string]string{
	"github.com/jackc/puddle/v2": "puddle", "github.com/jackc/pgx/v5": "pgx", "zombiezen.com/go/sqlite": "zombiezen sqlite", "modernc.org/sqlite": "modernc sqlite", "github.com/mattn/go-sqlite3": "mattn sqlite3",
	"github.com/hashicorp/yamux": "yamux", "github.com/xtaci/smux": "smux",
	"github.com/gin-gonic/gin": "gin", "github.com/danielgtaylor/huma/v2": "huma", "github.com/go-fuego/fuego": "fuego",
}

// addVersions records the versions of the peers in a program.
func (e *Env) addVersions(info *debug.BuildInfo) {
	for _, m := range info.Deps {
		if name, ok := peerModules[m.Path]; ok {
			e.Versions[name] = m.Version
		}
	}
}

// goCases makes the cases for benchmarks in one variant.
func (e *Env) goCases(s goSuite, found []goFound, v goVariant) []run.Case {
	cases := map[string]*run.Case{}
	var order []string
	for _, f := range found {
		id, arm := splitGo(f.name)
		if e.Quick && s.quick != nil && !s.quick.MatchString(id) || v.only != nil && !v.only.MatchString(id) {
			continue
		}
		c := cases[id]
		if c == nil {
			c = s.newCase(id + v.suffix)
			c.Cold = true
			c.Open = openGo(id, found, v)
			c.Seconds = e.Seconds * s.share
			if e.Quick {
				c.Seconds, c.Rounds = 0.04, 5
			}
			cases[id] = c
			order = append(order, id)
		}
		c.Arms = append(c.Arms, arm)
		for _, m := range f.metrics {
			if !slices.Contains(c.Info.Metrics, m) {
				c.Info.Metrics = append(c.Info.Metrics, m)
			}
		}
	}
	var list []run.Case
	for _, id := range order {
		list = append(list, *cases[id])
	}
	return list
}

func (s goSuite) newCase(id string) *run.Case {
	c := &run.Case{Baselines: []string{s.baseline, "stdlib", "headpond"}, Info: result.Case{
		ID: s.name + "/" + id, Suite: s.name, Title: s.workload + " " + s.title + ": " + id, Floor: s.floor, Metrics: []string{result.NsOp, result.AllocsOp, result.BytesOp, result.CPUNs},
	}}
	for part := range strings.SplitSeq(id, "/") {
		if claim, ok := s.claims[part]; ok {
			c.Info.Claim, c.Info.Because = claim, s.because
		}
	}
	return c
}

// goFound is the name of a benchmark, without "Benchmark", and the units that it reports.
type goFound struct {
	name    string
	metrics []string
}

// list runs each benchmark once.
func (b goBenchmark) list() ([]goFound, error) {
	cmd := exec.Command(b.program, "-test.run", "^$", "-test.bench", ".", "-test.benchtime", "1x")
	cmd.Dir = b.dir
	out, err := proc.Output(cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", b.program, err, out)
	}
	var found []goFound
	for line := range strings.Lines(string(out)) {
		if name, values, ok := parseGo(line); ok {
			found = append(found, goFound{name, slices.Sorted(maps.Keys(values))})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no benchmarks in " + b.dir)
	}
	return found, nil
}

// splitGo removes the arm from a name: "PoolAcquire/puddle/g=1" is case "PoolAcquire/g=1" of arm "puddle".
func splitGo(name string) (id, arm string) {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		if i > 0 && slices.Contains(goArms, p) {
			return strings.Join(slices.Delete(parts, i, i+1), "/"), p
		}
	}
	return name, "headpond"
}

// procs matches what package testing appends to a name: the number of processors.
var procs = regexp.MustCompile(`-\d+$`)

// parseGo parses a line such as "BenchmarkX/y-2  100  12.3 ns/op  0 B/op  0 allocs/op". A benchmark's own metrics have
// their unit as id.
func parseGo(line string) (name string, values map[string]float64, ok bool) {
	f := strings.Fields(line)
	if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
		return "", nil, false
	}
	values = map[string]float64{}
	for i := 2; i+1 < len(f); i += 2 {
		v, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return "", nil, false
		}
		values[goUnit(f[i+1])] = v
	}
	return procs.ReplaceAllString(strings.TrimPrefix(f[0], "Benchmark"), ""), values, true
}

func goUnit(unit string) string {
	switch unit {
	case "ns/op":
		return result.NsOp
	case "B/op":
		return result.BytesOp
	case "allocs/op":
		return result.AllocsOp
	case "cpu-ns/op":
		return result.CPUNs
	}
	return unit
}

// goMeter runs one benchmark of one arm.
type goMeter struct {
	goBenchmark
	name string
	how  goVariant
}

func openGo(id string, found []goFound, v goVariant) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, arm string, s run.Stopper) (run.Meter, error) {
		for _, f := range found {
			if i, a := splitGo(f.name); i == id && a == arm {
				return goMeter{s.(goBenchmark), f.name, v}, nil
			}
		}
		return nil, fmt.Errorf("no arm %s in %s", arm, id)
	}
}

// Close does nothing.
func (goMeter) Close() error { return nil }

// Round runs the benchmark alone, for about d.
func (m goMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	var pattern []string
	for part := range strings.SplitSeq("Benchmark"+m.name, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	args := append([]string{"-test.run", "^$", "-test.bench", strings.Join(pattern, "/"), "-test.benchtime", d.String(), "-test.benchmem"}, m.how.args...)
	cmd := exec.CommandContext(ctx, m.program, args...)
	cmd.Dir, cmd.Env = m.dir, append(os.Environ(), m.how.env...)
	out, err := proc.Output(cmd)
	if err != nil {
		return result.Sample{}, fmt.Errorf("%s: %w\n%s", m.name, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, values, ok := parseGo(line); ok && name == m.name {
			return result.Sample{Values: values}, nil
		}
	}
	return result.Sample{}, fmt.Errorf("%s: no figure in\n%s", m.name, out)
}
