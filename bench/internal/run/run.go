package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/bench/internal/result"
)

// Meter measures one arm in one case.
type Meter interface {
	// Round measures for about d, at rate operations per second if that is not 0.
	Round(ctx context.Context, d time.Duration, rate float64) (result.Sample, error)
	Close() error
}

// Extra is implemented by meters that have figures to take once, after the rounds.
type Extra interface {
	Extra(ctx context.Context, rate float64) (map[string]float64, error)
}

// Arm is a contestant of a group: it is started anew for each turn of a run, and idle while the others are measured.
type Arm struct {
	Name  string
	Start func(ctx context.Context) (Stopper, error)
}

// Stopper is the running form of an arm. Cases know its real type.
type Stopper interface{ Stop() }

// Case is a table to fill.
type Case struct {
	// Info goes into the results as it is, but for the arms. Its baseline is the first of Baselines that was measured.
	Info      result.Case
	Baselines []string
	// Arms are the names of those that take part; empty means all of the group.
	Arms []string
	// Open prepares an arm for this case.
	Open func(ctx context.Context, arm string, s Stopper) (Meter, error)
	// RateOf is the case of whose slowest arm's throughput 70 % is asked here; "" for as fast as can be.
	RateOf string
	// Seconds replaces the length of a round when it is not 0.
	Seconds float64
	// Beside is about how many seconds a round takes beside its length, for the estimate; it may take four times as many.
	Beside float64
	// Rounds bounds the rounds when it is not 0, for cases that take long.
	Rounds int
	// Cold means that every round begins from nothing, so that there is nothing to warm up.
	Cold bool
}

// Group is cases that share their arms.
type Group struct {
	Name  string
	Arms  []Arm
	Cases []Case
	// Prepare starts the backends of the arms.
	Prepare func(ctx context.Context) error
}

// saturation is the part of the slowest arm's throughput that all arms are asked for at a fixed rate.
const saturation = 0.7

// turns is how often the arms of a group are started anew, each time for a part of the rounds. Where a process's memory has come to
// lie, or which processor its threads woke up on, moves a figure by up to a fifth for as long as the process lives: rounds of one process
// agree with each other, and not with those of the next run.
const turns = 3

// warm is how long an arm runs before the first round of a turn, at least: pools fill, pages are touched.
const warm = 60 * time.Millisecond

// roundOverhead is what a round takes beside its own time, for the estimate.
const roundOverhead = 20 * time.Millisecond

// Runner runs groups into Results.
type Runner struct {
	Results *result.Results
	Path    string    // of results.json
	Log     io.Writer // progress, a line that is written again and again
	Only    func(arm string) bool
	Extras  bool // take the figures of Extra too
	// Others begins to watch the machine; what it returns tells which part of the processors' time others have used
	// since. nil = unknown.
	Others func() (since func() float64)

	// Terminal writes one line over and over, and not one for each case.
	Terminal bool

	total, done time.Duration // of rounds
	began       time.Time
}

// Run fills in what is missing. An interrupt (ctx) ends it within a moment; all finished rounds are saved.
func (r *Runner) Run(ctx context.Context, groups []Group) error {
	r.began = time.Now()
	for _, g := range groups {
		for _, c := range g.Cases {
			for turn := range turns {
				r.total += r.cost(g, c, turn)
			}
		}
	}
	for _, g := range groups {
		if err := r.group(ctx, g); err != nil {
			return err
		}
	}
	r.clear()
	return nil
}

func (r *Runner) rounds(c Case) int {
	if c.Rounds > 0 {
		return min(c.Rounds, r.Results.Settings.Rounds)
	}
	return r.Results.Settings.Rounds
}

func (r *Runner) seconds(c Case) time.Duration {
	s := r.Results.Settings.Seconds
	if c.Seconds > 0 {
		s = c.Seconds
	}
	return duration(s)
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// takes is about how long a round is on its way.
func (r *Runner) takes(c Case) time.Duration {
	return r.seconds(c) + duration(c.Beside) + roundOverhead
}

// until is the number of rounds that there are after a turn; turn -1 is before the first.
func (r *Runner) until(c Case, turn int) int { return r.rounds(c) * (turn + 1) / turns }

// warmUp is how long an arm runs before the first round of a turn.
func (r *Runner) warmUp(c Case) time.Duration {
	if c.Cold {
		return 0
	}
	return max(warm, r.seconds(c)/4)
}

// cost is how long a turn of a case takes.
func (r *Runner) cost(g Group, c Case, turn int) time.Duration {
	rounds := r.until(c, turn) - r.until(c, turn-1)
	if rounds == 0 {
		return 0
	}
	return time.Duration(len(r.armsOf(g, c))) * (time.Duration(rounds)*r.takes(c) + r.warmUp(c))
}

// armsOf lists the arms of a case.
func (r *Runner) armsOf(g Group, c Case) []string {
	var names []string
	for _, a := range g.Arms {
		if (len(c.Arms) == 0 || slices.Contains(c.Arms, a.Name)) && (r.Only == nil || r.Only(a.Name)) {
			names = append(names, a.Name)
		}
	}
	return names
}

// complete reports whether all rounds of a case up to a turn's last are there already, of which nobody may want any.
func (r *Runner) complete(g Group, c Case, turn int) bool {
	wanted := r.until(c, turn)
	res := r.Results.Case(c.Info.ID)
	if res == nil {
		return wanted == 0 || len(r.armsOf(g, c)) == 0
	}
	for _, name := range r.armsOf(g, c) {
		if a := res.Arm(name); a == nil || a.Error == "" && len(a.Rounds) < wanted {
			return false
		}
	}
	return true
}

// group measures the cases, with the arms started anew for each turn.
func (r *Runner) group(ctx context.Context, g Group) error {
	prepared := false
	for turn := range turns {
		if !slices.ContainsFunc(g.Cases, func(c Case) bool { return !r.complete(g, c, turn) }) {
			r.skip(g, turn)
			continue
		}
		r.say("%s: starting", g.Name)
		if g.Prepare != nil && !prepared {
			if err := g.Prepare(ctx); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				r.Results.Missing = append(r.Results.Missing, fmt.Sprintf("%s was not measured: %v", g.Name, err))
				for ; turn < turns; turn++ {
					r.skip(g, turn)
				}
				return nil
			}
			prepared = true
		}
		if err := r.turn(ctx, g, turn); err != nil {
			return err
		}
	}
	return nil
}

// turn starts the arms, takes their part of the rounds of each case, and stops them.
func (r *Runner) turn(ctx context.Context, g Group, turn int) error {
	running, failed := r.start(ctx, g)
	defer stop(running)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, c := range g.Cases {
		if r.complete(g, c, turn) {
			r.done += r.cost(g, c, turn)
			continue
		}
		if err := r.measure(ctx, g, c, turn, running, failed); err != nil {
			return err
		}
	}
	return nil
}

// skip counts a turn as done.
func (r *Runner) skip(g Group, turn int) {
	for _, c := range g.Cases {
		r.done += r.cost(g, c, turn)
	}
}

// start starts the arms, all at the same time, for nothing is measured yet. What fails is said in the second result.
func (r *Runner) start(ctx context.Context, g Group) (running map[string]Stopper, failed map[string]string) {
	running, failed = map[string]Stopper{}, map[string]string{}
	var mu sync.Mutex // guards both
	var wg sync.WaitGroup
	for _, a := range g.Arms {
		if r.Only != nil && !r.Only(a.Name) {
			continue
		}
		wg.Go(func() {
			s, err := a.Start(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[a.Name] = clip(err.Error())
				return
			}
			running[a.Name] = s
		})
	}
	wg.Wait()
	return running, failed
}

// stop stops them.
func stop(running map[string]Stopper) {
	var wg sync.WaitGroup
	for _, s := range running {
		wg.Go(s.Stop)
	}
	wg.Wait()
}

// open makes the meters of a case, and the places for its results. An arm that failed in a turn is left out of the later ones.
func (r *Runner) open(ctx context.Context, g Group, c Case, turn int, running map[string]Stopper, failed map[string]string) (*result.Case, map[string]Meter, error) {
	res := r.Results.Case(c.Info.ID)
	if res == nil {
		info := c.Info
		res = &info
		r.Results.Cases = append(r.Results.Cases, res)
	}
	meters := map[string]Meter{}
	for _, name := range r.armsOf(g, c) {
		arm := res.Arm(name)
		if arm == nil {
			arm = &result.Arm{Name: name}
			res.Arms = append(res.Arms, arm)
		}
		if turn == 0 || arm.Error == "" {
			arm.Error = failed[name]
		}
		if arm.Error != "" {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, patience)
		m, err := c.Open(limited, name, running[name])
		cancel()
		if ctx.Err() != nil {
			return res, meters, ctx.Err()
		}
		if err != nil {
			arm.Error = err.Error()
			continue
		}
		meters[name] = m
	}
	return res, meters, nil
}

// measure takes a turn's rounds of a case.
func (r *Runner) measure(ctx context.Context, g Group, c Case, turn int, running map[string]Stopper, failed map[string]string) error {
	res, meters, err := r.open(ctx, g, c, turn, running, failed)
	defer func() {
		for _, m := range meters {
			_ = m.Close()
		}
	}()
	if err != nil {
		return err
	}
	if c.RateOf != "" && res.Rate == 0 {
		if res.Rate = r.rate(c.RateOf, res); res.Rate == 0 {
			r.done += r.cost(g, c, turn)
			return nil
		}
	}
	if err := r.warm(ctx, c, turn, res, meters); err != nil {
		return err
	}
	others, before := func() float64 { return 0 }, res.Others // those of the rounds that are resumed
	if r.Others != nil {
		others = r.Others()
	}
	for round := r.until(c, turn-1); round < r.until(c, turn); round++ {
		for _, a := range res.Arms {
			if err := r.round(ctx, c, res, a, meters[a.Name], round); err != nil {
				return err
			}
		}
		res.Others = max(before, others())
	}
	res.Baseline = baseline(res, c.Baselines)
	if turn == turns-1 {
		if err := r.extras(ctx, res, meters); err != nil {
			return err
		}
	}
	return r.Results.Save(r.Path)
}

// warm takes a round that does not count of each arm.
func (r *Runner) warm(ctx context.Context, c Case, turn int, res *result.Case, meters map[string]Meter) error {
	for _, a := range res.Arms {
		r.done += r.warmUp(c)
		m := meters[a.Name]
		if c.Cold || m == nil || len(a.Rounds) >= r.until(c, turn) {
			continue
		}
		_, err := patiently(ctx, m, r.warmUp(c), c.Beside, res.Rate)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			a.Error = clip(err.Error())
			delete(meters, a.Name)
			_ = m.Close()
		}
	}
	return nil
}

// extras takes what is taken once. What fails is left out: it is no part of the comparison.
func (r *Runner) extras(ctx context.Context, res *result.Case, meters map[string]Meter) error {
	for _, a := range res.Arms {
		m, ok := meters[a.Name].(Extra)
		if !r.Extras || !ok || len(a.Rounds) == 0 {
			continue
		}
		if values, err := m.Extra(ctx, res.Rate); err == nil {
			a.Extra = values
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// round takes one round of one arm, unless it is there already.
func (r *Runner) round(ctx context.Context, c Case, res *result.Case, a *result.Arm, m Meter, round int) error {
	r.done += r.takes(c)
	if m == nil || len(a.Rounds) > round || a.Error != "" {
		return nil
	}
	if r.Terminal || round == 0 && a == res.Arms[0] {
		r.say("%s %s, round %d of %d", res.ID, a.Name, round+1, r.rounds(c))
	}
	s, err := patiently(ctx, m, r.seconds(c), c.Beside, res.Rate)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		a.Error = clip(fmt.Sprintf("round %d: %v", round+1, err))
	} else {
		a.Add(s)
	}
	res.Baseline = baseline(res, c.Baselines)
	return r.Results.Save(r.Path)
}

// patience is how much longer than its time a round may take before its arm is given up: what is measured may hang.
const patience = time.Minute

// patiently takes a round.
func patiently(ctx context.Context, m Meter, d time.Duration, beside, rate float64) (result.Sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+4*duration(beside)+patience, errHangs)
	defer cancel()
	s, err := m.Round(ctx, d, rate)
	if err != nil && errors.Is(context.Cause(ctx), errHangs) {
		err = fmt.Errorf("%w: %w", errHangs, err)
	}
	return s, err
}

// errHangs means that a round has not ended.
var errHangs = fmt.Errorf("no end %v after the end of the round", patience)

// maxError bounds an error in the reports: sixty connections that break say the same sixty times.
const maxError = 600

func clip(text string) string {
	if len(text) > maxError {
		return text[:maxError] + "…"
	}
	return text
}

// baseline is the first of the names that has figures.
func baseline(c *result.Case, names []string) string {
	for _, name := range names {
		if a := c.Arm(name); a != nil && len(a.Rounds) > 0 {
			return name
		}
	}
	return ""
}

// rate is 70 % of what the slowest arm of case id reached, of those that take part in the paced case too.
func (r *Runner) rate(id string, paced *result.Case) float64 {
	c := r.Results.Case(id)
	if c == nil {
		return 0
	}
	slowest := 0.0
	for _, a := range c.Arms {
		if s := a.Stat(result.Throughput); s.N > 0 && paced.Arm(a.Name) != nil && (slowest == 0 || s.Median < slowest) {
			slowest = s.Median
		}
	}
	return saturation * slowest
}

// say writes the progress line.
func (r *Runner) say(format string, args ...any) {
	left := time.Duration(0)
	if r.total > 0 {
		scale := 1.0
		if elapsed := time.Since(r.began); r.done > 0 && elapsed > 5*time.Second {
			scale = max(1, float64(elapsed)/float64(r.done))
		}
		left = time.Duration(float64(r.total-r.done) * scale)
	}
	before, after := "", "\n"
	if r.Terminal {
		before, after = "\r\x1b[K", ""
	}
	_, _ = fmt.Fprintf(r.Log, "%s%3.0f %%  %s left  %s%s", before, 100*float64(r.done)/float64(max(r.total, 1)), left.Round(time.Second), fmt.Sprintf(format, args...), after)
}

func (r *Runner) clear() {
	if r.Terminal {
		_, _ = fmt.Fprint(r.Log, "\r\x1b[K")
	}
}

// ErrInterrupted is the error of an interrupted program.
var ErrInterrupted = errors.New("interrupted")
