package suite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/proc"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// pgbenchMeter runs pgbench for a number of transactions, because pgbench accepts only whole seconds and quick runs are
// shorter.
type pgbenchMeter struct {
	target   *peers.Target
	path     string
	args     []string
	clients  int
	tps      float64 // of the last round
	accepted accepted
}

// firstTransactions is the number of transactions per client in the first round, which measures the
// speed.
const firstTransactions = 10

// openPgbench returns the Open of W3c with pgbench.
func (e *Env) openPgbench(clients int, args ...string) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		t := s.(armTarget).Target
		host, port, err := net.SplitHostPort(t.Addr)
		if err != nil {
			return nil, err
		}
		common := []string{"-h", host, "-p", port, "-U", peers.DBUser, "-n", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(load.Threads(), clients))}
		return &pgbenchMeter{target: t, path: e.pg.Bin("pgbench"), args: append(common, args...), clients: clients, accepted: e.pg.Counter()}, nil
	}
}

// Close does nothing.
func (*pgbenchMeter) Close() error { return nil }

var (
	pgbenchRate  = regexp.MustCompile(`tps = ([\d.]+)`)
	pgbenchCount = regexp.MustCompile(`transactions actually processed: (\d+)`)
	pgbenchMean  = regexp.MustCompile(`latency average = ([\d.]+) ms`)
	pgbenchError = regexp.MustCompile(`(?m)^pgbench: error: .*`)
)

// Round runs pgbench for about d.
func (m *pgbenchMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	opened, err := m.accepted.count()
	if err != nil {
		return result.Sample{}, err
	}
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	each := firstTransactions
	if m.tps > 0 {
		each = max(1, int(math.Round(m.tps*d.Seconds()/float64(m.clients))))
	}
	cmd := exec.CommandContext(ctx, m.path, append(m.args, "-t", strconv.Itoa(each), peers.DB)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PGPASSWORD="+peers.Password)
	out, err := proc.Output(cmd)
	if err != nil {
		return result.Sample{}, fmt.Errorf("pgbench: %w: %s", err, pgbenchError.Find(out))
	}
	if e := pgbenchError.Find(out); e != nil {
		return result.Sample{}, errors.New(string(e))
	}
	cpu, peak, err := a.end()
	if err != nil {
		return result.Sample{}, err
	}
	rate, count, mean := number(pgbenchRate, out), number(pgbenchCount, out), number(pgbenchMean, out)
	if count == 0 || rate == 0 {
		return result.Sample{}, fmt.Errorf("pgbench said: %s", out)
	}
	m.tps = rate
	v := map[string]float64{result.Throughput: rate, result.Mean: mean * 1000}
	if m.target.Proc != nil {
		v[result.CPU], v[result.Peak] = micros(cpu)/count, peak
	}
	return result.Sample{Values: v}, m.accepted.reuse(v, count, opened)
}

func number(re *regexp.Regexp, out []byte) float64 {
	m := re.FindSubmatch(out)
	if m == nil {
		return 0
	}
	f, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return 0
	}
	return f
}

// pgbenchMetrics are the metrics that pgbench reports.
var pgbenchMetrics = []string{result.CPU, result.Throughput, result.Mean, result.Peak, result.Reuse}

// pgbench is W3c with pgbench.
func (e *Env) pgbench() []run.Case {
	counts, seconds, rounds := []int{1, 32, 200, 1000}, max(2, e.Seconds), 0
	if e.Quick {
		counts, seconds, rounds = []int{32}, 0.3, 5
	}
	var cases []run.Case
	add := func(name string, n int, title string, args ...string) {
		c := run.Case{
			Info: result.Case{
				ID: fmt.Sprintf("W3c/%s/%d", name, n), Suite: "sql", Conns: n, Metrics: pgbenchMetrics,
				Title: fmt.Sprintf("pgbench %s, %s on 20 server connections", title, clients(n)),
				Note:  "pgbench's clients log in within the round, and that is in the processor time",
			},
			Baselines: []string{"pgbouncer", "gateway-goroutine"}, Open: e.openPgbench(n, args...), Seconds: seconds, Rounds: rounds,
			Arms: namesOf(e.poolers()[1:]), // the server without a pooler logs clients in differently
		}
		if strings.Contains(name, "prepared") {
			c.Info.Note += "; PgBouncer before 1.21 refuses named prepared statements in transaction mode"
		}
		cases = append(cases, c)
	}
	for _, mode := range []string{"simple", "extended", "prepared"} {
		for _, n := range counts {
			add("pgbench-"+mode, n, "-S -M "+mode, "-S", "-M", mode)
		}
	}
	if !e.Quick {
		add("pgbench-tpcb", 32, "(TPC-B)", "-M", "simple")
	}
	return cases
}

// loginMeter connects, sends one query and disconnects, repeatedly.
type loginMeter struct {
	target   *peers.Target
	dial     func(context.Context) (net.Conn, error)
	accepted accepted
}

// logins is the number of clients of W3b that log in at the same time.
const logins = 8

func (m loginMeter) Close() error { return nil }

// Round counts the logins within d.
func (m loginMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	opened, err := m.accepted.count()
	if err != nil {
		return result.Sample{}, err
	}
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	began := time.Now()
	hists := make([]hist.Histogram, logins)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for i := range logins {
		wg.Go(func() {
			for time.Since(began) < d && failed.Load() == nil && ctx.Err() == nil {
				start := time.Now()
				if err := m.once(ctx); err != nil {
					failed.Store(&err)
				}
				hists[i].Record(time.Since(start))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		return result.Sample{}, *err
	}
	cpu, peak, err := a.end()
	if err != nil {
		return result.Sample{}, err
	}
	all := new(hist.Histogram)
	for i := range hists {
		all.Merge(&hists[i])
	}
	v := map[string]float64{
		result.Throughput: float64(all.Count()) / took.Seconds(),
		result.P50:        micros(all.Quantile(0.5)), result.P99: micros(all.Quantile(0.99)), result.P999: micros(all.Quantile(0.999)),
	}
	n := float64(max(all.Count(), 1))
	if m.target.Proc != nil {
		v[result.CPU], v[result.Peak] = micros(cpu)/n, peak
	}
	return result.Sample{Values: v, Latency: all}, m.accepted.reuse(v, n, opened)
}

// once is one login, SELECT 1 and Terminate.
func (m loginMeter) once(ctx context.Context) error {
	c, err := m.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // do not wait for a pooler that does not answer
	defer stop()
	w := load.Query("SELECT 1")
	if _, err := c.Write(w.Request); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for n := 0; n < len(buf); {
		k, err := c.Read(buf[n:])
		if err != nil {
			return err
		}
		n += k
		if whole, err := w.Whole(buf[:n]); err != nil {
			return err
		} else if whole > 0 {
			break
		}
	}
	_, err = c.Write([]byte{'X', 0, 0, 0, 4})
	return err
}
