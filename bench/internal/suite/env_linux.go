package suite

import (
	"context"
	"io"

	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// Options are the options of the command line.
type Options struct {
	Quick    bool
	Headpond string // the gateway's program
	Self     string // this program
	Source   string // the source tree, "" if there is none
	Loops    int
	Seconds  float64 // of a round
}

// Env is shared by the groups of a run. Backends are started when the first group needs them.
type Env struct {
	Options
	Starter *peers.Starter
	Log     io.Writer
	// Versions are the versions of the peers that are linked into benchmarks. Groups sets them.
	Versions map[string]string

	echo, echoTLS *peers.Backend
	web, stream   *peers.Backend
	std, stdTLS   *peers.Backend
	grpc          *peers.Backend
	pg            *peers.Postgres
	api           *peers.KubeAPI
	users, sqlite string // files: the poolers' list of users, a SQLite database
}

// armTarget is a running arm.
type armTarget struct{ *peers.Target }

// Stop ends the arm's process, if it has one.
func (t armTarget) Stop() {
	if t.Proc != nil {
		t.Proc.Stop()
	}
}

// backend starts a backend of a kind, unless it is running.
func (e *Env) backend(b **peers.Backend, kind string) error {
	if *b != nil {
		return nil
	}
	var err error
	*b, err = e.Starter.StartBackend(kind)
	return err
}

// postgres starts the server, unless it is running.
func (e *Env) postgres(ctx context.Context) error {
	if e.pg != nil {
		return nil
	}
	scale := 10
	if e.Quick {
		scale = 2
	}
	var err error
	e.pg, err = e.Starter.StartPostgres(ctx, scale)
	return err
}

// arm makes an arm from a function that starts it.
func arm(name string, start func() (*peers.Target, error)) run.Arm {
	return run.Arm{Name: name, Start: func(context.Context) (run.Stopper, error) {
		t, err := start()
		if err != nil {
			return nil, err
		}
		return armTarget{t}, nil
	}}
}

// engines are the gateway's engines, best first.
var engines = []string{"uring", "epoll", "goroutine"}

// gateways makes three arms, "gateway-uring" and so on, for the address that target returns when
// they start.
func (e *Env) gateways(protocol string, target func() string, change func(*peers.Gateway)) []run.Arm {
	var arms []run.Arm
	for _, engine := range engines {
		arms = append(arms, arm("gateway-"+engine, func() (*peers.Target, error) {
			g := peers.Gateway{Engine: engine, Protocol: protocol, Target: target()}
			if change != nil {
				change(&g)
			}
			return e.Starter.StartGateway(g)
		}))
	}
	return arms
}

// defaults returns arms with default settings of a peer; none in a quick run.
func (e *Env) defaults(arms ...run.Arm) []run.Arm {
	if e.Quick {
		return nil
	}
	return arms
}

// direct is the arm without a proxy: the limit of generator and backend together.
func direct(target func() string) run.Arm {
	return arm("direct", func() (*peers.Target, error) { return &peers.Target{Addr: target()}, nil })
}

// loadMeter measures with a load generator.
type loadMeter struct {
	client   *load.Client
	target   *peers.Target
	fresh    bool     // one connection per operation
	strict   bool     // no operation may fail
	accepted accepted // counts the backend's connections
}

// openLoad returns the Open of cases whose operations are a load.Workload.
func (e *Env) openLoad(w load.Workload, conns int, backend func() *peers.Backend) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(ctx context.Context, _ string, s run.Stopper) (run.Meter, error) {
		t := s.(armTarget).Target
		client, err := load.Open(ctx, load.Config{Addr: t.Addr, Conns: conns, Workload: w})
		if err != nil {
			if client != nil {
				_ = client.Close()
			}
			return nil, err
		}
		m := &loadMeter{client: client, target: t, fresh: w.Fresh}
		if backend != nil {
			m.accepted = backend().Accepted
		}
		return m, nil
	}
}

// Close closes the generator's connections.
func (m *loadMeter) Close() error { return m.client.Close() }

// accepted returns how many connections a backend has had; nil if that is unknown.
type accepted func() (int64, error)

func (a accepted) count() (int64, error) {
	if a == nil {
		return 0, nil
	}
	return a()
}

// reuse adds to v the number of operations per connection that the backend has accepted since before.
func (a accepted) reuse(v map[string]float64, operations float64, before int64) error {
	if a == nil {
		return nil
	}
	now, err := a()
	v[result.Reuse] = operations / float64(max(now-before, 1))
	return err
}

// maxErrors is the largest fraction of operations that may fail in a valid round.
const maxErrors = 0.001

// tooMany reports whether too many operations have failed for a valid round.
func (m *loadMeter) tooMany(r load.Result) bool {
	if m.strict {
		return r.Errors > 0
	}
	return float64(r.Errors) > maxErrors*float64(r.All)
}

// micros converts nanoseconds to microseconds.
func micros[T ~int64](d T) float64 { return float64(d) / 1e3 }

// account is the cost of a process under test since begin.
type account struct {
	target *peers.Target
	// Nanoseconds and context switches at the beginning.
	cpu, switches int64
}

func begin(t *peers.Target) (account, error) {
	a := account{target: t}
	if t.Proc == nil {
		return a, nil
	}
	t.Proc.ResetPeak()
	d, err := t.Proc.CPU()
	a.cpu, a.switches = int64(d), t.Proc.Switches()
	return a, err
}

// end returns the processor time since begin in nanoseconds, and the peak of memory in MiB.
func (a account) end() (cpu int64, peak float64, err error) {
	if a.target.Proc == nil {
		return 0, 0, nil
	}
	d, err := a.target.Proc.CPU()
	return int64(d) - a.cpu, float64(a.target.Proc.Memory().Peak) / (1 << 20), err
}

// switched is the number of context switches since begin.
func (a account) switched() int64 {
	if a.target.Proc == nil {
		return 0
	}
	return a.target.Proc.Switches() - a.switches
}
