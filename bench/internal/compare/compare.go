// Package compare finds regressions between two results.json files of one machine.
//
//	changes := compare.Compare(old, now)
//	err := compare.Print(os.Stdout, old, now)
//	if errors.Is(err, compare.ErrRegression) { … }
package compare

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/headpond/headpond/bench/internal/result"
)

// ErrRegression means that a figure has become worse by more than chance explains.
var ErrRegression = errors.New("regression")

// threshold is the smallest change that counts, if its interval also excludes no change.
const threshold = 0.05

// Change is one metric of one arm in both files.
type Change struct {
	Case, Arm, Metric string
	// Ratio is new divided by old, with a 95 % interval. If both files have the case's baseline, and this arm is not
	// the baseline, it is the ratio of the ratios to the baseline: that removes differences of the whole machine on the
	// two days. Baselines themselves are not compared.
	Ratio    result.Ratio
	Relative bool
	Verdict  Verdict
}

// Verdict is what a change means.
type Verdict string

// The verdicts.
const (
	Worse  Verdict = "worse"
	Better Verdict = "better"
	Same   Verdict = "same"
	Noise  Verdict = "noise" // the interval is too wide for a verdict
)

// Compare compares the metrics for which lower or higher is better: the first of each case, and p99 at a fixed rate.
func Compare(old, now *result.Results) []Change {
	var changes []Change
	for _, c := range now.Cases {
		before := old.Case(c.ID)
		if before == nil {
			continue
		}
		metrics := c.Metrics[:1]
		if c.Rate > 0 && slices.Contains(c.Metrics, result.P99) {
			metrics = append(slices.Clone(metrics), result.P99)
		}
		for _, a := range c.Arms {
			for _, m := range metrics {
				if ch, ok := compareArm(before, c, a, m); ok {
					changes = append(changes, ch)
				}
			}
		}
	}
	return changes
}

func compareArm(before, after *result.Case, a *result.Arm, metric string) (Change, bool) {
	ch := Change{Case: after.ID, Arm: a.Name, Metric: metric}
	better := result.MetricOf(metric).Better
	ch.Ratio = result.Independent(a, before.Arm(a.Name), metric)
	if !ch.Ratio.Valid() || better == "" {
		return ch, false
	}
	if before.Disturbed() || after.Disturbed() {
		ch.Verdict = Noise
		return ch, true
	}
	ch.Verdict = verdict(ch.Ratio, better)
	if base := after.Baseline; base != "" && base == before.Baseline {
		if a.Name == base {
			return ch, false // the baseline
		}
		if r := result.Independent2(a, after.Arm(base), before.Arm(a.Name), before.Arm(base), metric); r.Valid() {
			ch.Verdict = both(ch.Verdict, verdict(r, better))
			ch.Ratio, ch.Relative = r, true
		}
	}
	return ch, true
}

// both combines the verdicts of a figure and of its ratio to the baseline. A machine that was faster or slower that day
// changes one of them; a change of the measured program changes both.
func both(alone, relative Verdict) Verdict {
	switch {
	case alone == relative:
		return alone
	case alone == Noise || relative == Noise:
		return Noise
	}
	return Same
}

// verdict judges a ratio of new to old.
func verdict(r result.Ratio, better string) Verdict {
	low, high := r.Low, r.High
	if better == "higher" {
		low, high = 1/r.High, 1/r.Low
	}
	switch {
	case low > 1+threshold:
		return Worse
	case high < 1-threshold:
		return Better
	case r.Noise():
		return Noise
	}
	return Same
}

// Pair is the ratio of one arm to its baseline, in both files.
type Pair struct {
	Case, Arm, Metric string
	Old, Now          result.Ratio
}

// agreement is the largest difference, as a fraction, at which the ratios of two runs agree.
const agreement = 0.10

// Agrees reports whether the ratios of both runs agree.
func (p Pair) Agrees() bool {
	apart := p.Now.Value / p.Old.Value
	return apart <= 1+agreement && apart >= 1/(1+agreement)
}

// Noise reports whether one of the runs has marked the figure as noise.
func (p Pair) Noise() bool { return p.Old.Noise() || p.Now.Noise() }

// Pairs returns the ratios that are in the tables of both files.
func Pairs(old, now *result.Results) []Pair {
	var pairs []Pair
	for _, c := range now.Cases {
		before := old.Case(c.ID)
		if before == nil || c.Baseline == "" || c.Baseline != before.Baseline {
			continue
		}
		for _, a := range c.Arms {
			m := c.Metrics[0]
			p := Pair{c.ID, a.Name, m, before.Ratio(before.Arm(a.Name), before.Arm(c.Baseline), m), c.Ratio(a, c.Arm(c.Baseline), m)}
			if a.Name != c.Baseline && p.Old.Valid() && p.Now.Valid() {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs
}

// agree prints how many ratios of two runs agree, and those that differ although neither run marked them as noise.
func agree(b *strings.Builder, pairs []Pair) {
	sure, same, noise, noiseSame := 0, 0, 0, 0
	for _, p := range pairs {
		switch {
		case p.Noise():
			noise++
			if p.Agrees() {
				noiseSame++
			}
			continue
		case p.Agrees():
			same++
		default:
			fmt.Fprintf(b, "differs  %s %s, %s to the baseline: %s, then %s\n", p.Case, p.Arm, result.MetricOf(p.Metric).Label, p.Old, p.Now)
		}
		sure++
	}
	fmt.Fprintf(b, "Ratios to the baselines: %d of %d agree within %.0f %%; of %d more that a run has marked as noise, %d do\n", same, sure, 100*agreement, noise, noiseSame)
}

// Print prints the changes, and the number of figures without one. The error is ErrRegression if a figure has become
// worse.
func Print(w io.Writer, old, now *result.Results) error {
	var b strings.Builder
	if old.Machine.CPU != now.Machine.CPU || old.Machine.Cores != now.Machine.Cores {
		fmt.Fprintf(&b, "Two machines: %d × %s and %d × %s; what follows says little.\n", old.Machine.Cores, old.Machine.CPU, now.Machine.Cores, now.Machine.CPU)
	}
	if old.Settings != now.Settings {
		fmt.Fprintf(&b, "Other settings: %+v and %+v.\n", old.Settings, now.Settings)
	}
	count := map[Verdict]int{}
	changes := Compare(old, now)
	if len(changes) == 0 {
		b.WriteString("The two have no figure in common: they are of different suites or arms.\n")
	}
	for _, c := range changes {
		count[c.Verdict]++
		if c.Verdict == Same || c.Verdict == Noise {
			continue
		}
		relative := ""
		if c.Relative {
			relative = ", to the baseline"
		}
		fmt.Fprintf(&b, "%-6s  %s %s, %s: × %.2f (95 %%: %.2f–%.2f%s)\n", c.Verdict, c.Case, c.Arm, result.MetricOf(c.Metric).Label, c.Ratio.Value, c.Ratio.Low, c.Ratio.High, relative)
	}
	fmt.Fprintf(&b, "%d worse, %d better, %d the same, %d too noisy to say\n", count[Worse], count[Better], count[Same], count[Noise])
	if 2*count[Noise] > len(changes) {
		b.WriteString("Most of it says nothing: measure more or longer rounds, on a machine that does nothing else.\n")
	}
	agree(&b, Pairs(old, now))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	if count[Worse] > 0 {
		return fmt.Errorf("%w: %d figure(s) are worse by more than %.0f %%", ErrRegression, count[Worse], 100*threshold)
	}
	return nil
}
