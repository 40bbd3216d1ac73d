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

// Extra is implemented by meters with figures that are taken once, after the rounds.
type Extra interface {
	Extra(ctx context.Context, rate float64) (map[string]float64, error)
}

// Arm is one of the compared programs of a group. It is started anew for each part of a run, and idle while others are
// measured.
type Arm struct {
	Name  string
	Start func(ctx context.Context) (Stopper, error)
}

// Stopper is a running arm. Cases know its real type.
type Stopper interface{ Stop() }

// Case is one table of results.
type Case struct {
	// Info is copied into the results, without its arms. The baseline is the first of Baselines that was measured.
	Info      result.Case
	Baselines []string
	// Arms names the arms of the case; empty means all arms of the group.
	Arms []string
	// Open prepares an arm for this case.
	Open func(ctx context.Context, arm string, s Stopper) (Meter, error)
	// RateOf names a case: this one runs at the fraction Load of the throughput of that case's slowest arm. "" means as
	// fast as possible.
	RateOf string
	Load   float64
	// Seconds replaces the length of a round if it is not 0.
	Seconds float64
	// Beside is the approximate time that a round takes in addition to its length, in seconds, for the estimate. A
	// round may take four times as much.
	Beside float64
	// Rounds limits the number of rounds if it is not 0, for long cases.
	Rounds int
	// Cold means that every round starts without state, so that no warm-up is needed.
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

// turns is how often the arms of a group are started anew, each time for a part of the rounds. The layout of a
// process's memory, and the processors on which its threads run, change a figure by up to a fifth for the life of the
// process: rounds of one process agree with each other, but not with those of another.
const turns = 3

// warm is the shortest warm-up of an arm before the first round: pools fill and pages are touched.
const warm = 60 * time.Millisecond

// roundOverhead is the estimated time of a round in addition to its length.
const roundOverhead = 20 * time.Millisecond

// Runner runs groups into Results.
type Runner struct {
	Results *result.Results
	Path    string    // of results.json
	Log     io.Writer // progress, a line that is overwritten
	Only    func(arm string) bool
	Extras  bool // also take the figures of Extra
	// Others starts to watch the machine. The returned function tells which fraction of the processors' time others
	// have used since. nil = unknown.
	Others func() (since func() float64)

	// Terminal overwrites one progress line. Otherwise each case has a line.
	Terminal bool

	total, done time.Duration // of rounds
	began       time.Time
}

// Run measures what is missing in the results. When ctx ends it returns within a moment; completed rounds are saved.
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

// takes estimates the time of a round.
func (r *Runner) takes(c Case) time.Duration {
	return r.seconds(c) + duration(c.Beside) + roundOverhead
}

// until is the number of rounds that are complete after a turn; turn -1 is before the first.
func (r *Runner) until(c Case, turn int) int { return r.rounds(c) * (turn + 1) / turns }

// warmUp is how long an arm runs before the first round of a turn.
func (r *Runner) warmUp(c Case) time.Duration {
	if c.Cold {
		return 0
	}
	return max(warm, r.seconds(c)/4)
}

// cost estimates the time of a case in a turn.
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

// complete reports whether all rounds of a case up to the end of a turn are done.
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

// skip counts a turn as done in the estimate.
func (r *Runner) skip(g Group, turn int) {
	for _, c := range g.Cases {
		r.done += r.cost(g, c, turn)
	}
}

// start starts all arms at once, because nothing is measured yet. The second result has the errors.
func (r *Runner) start(ctx context.Context, g Group) (running map[string]Stopper, failed map[string]string) {
	running, failed = map[string]Stopper{}, map[string]string{}
	var mu sync.Mutex // guards running and failed
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

// open makes the meters of a case, and its entries in the results. An arm that failed in one turn is left out of later
// ones.
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

// measure measures the rounds of a case that belong to a turn.
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
		if res.Rate = r.rate(c, res); res.Rate == 0 {
			r.done += r.cost(g, c, turn)
			return nil
		}
	}
	if err := r.warm(ctx, c, turn, res, meters); err != nil {
		return err
	}
	others, before := func() float64 { return 0 }, res.Others // measured in resumed rounds
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

// warm runs each arm for one round that does not count.
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

// extras takes the figures of Extra. An error leaves them out: they are no part of the comparison.
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

// round measures one round of one arm, unless the results have it.
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

// patience is how long after its end a round may still run before its arm is given up as hanging.
const patience = time.Minute

// patiently runs a round with a limit of time.
func patiently(ctx context.Context, m Meter, d time.Duration, beside, rate float64) (result.Sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+4*duration(beside)+patience, errHangs)
	defer cancel()
	s, err := m.Round(ctx, d, rate)
	if err != nil && errors.Is(context.Cause(ctx), errHangs) {
		err = fmt.Errorf("%w: %w", errHangs, err)
	}
	return s, err
}

// errHangs means that a round has not ended in time.
var errHangs = fmt.Errorf("no end %v after the end of the round", patience)

// maxError bounds an error in the reports: if sixty connections break, the text repeats sixty
// times.
const maxError = 600

func clip(text string) string {
	if len(text) > maxError {
		return text[:maxError] + "…"
	}
	return text
}

// baseline returns the first of the names that has figures.
func baseline(c *result.Case, names []string) string {
	for _, name := range names {
		if a := c.Arm(name); a != nil && len(a.Rounds) > 0 {
			return name
		}
	}
	return ""
}

// rate returns what of asks for: a fraction of the throughput of another case's slowest arm, among the arms that are
// also in the paced case.
func (r *Runner) rate(of Case, paced *result.Case) float64 {
	c := r.Results.Case(of.RateOf)
	if c == nil {
		return 0
	}
	slowest := 0.0
	for _, a := range c.Arms {
		if s := a.Stat(result.Throughput); s.N > 0 && paced.Arm(a.Name) != nil && (slowest == 0 || s.Median < slowest) {
			slowest = s.Median
		}
	}
	return of.Load * slowest
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
