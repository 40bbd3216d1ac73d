package result

import (
	"fmt"
	"math"
	"slices"
)

// Stat is a metric over the rounds of an arm. It is zero, with N 0, when no round has it.
type Stat struct {
	N                int
	Min, Median, Max float64
}

// Stat collects a metric.
func (a *Arm) Stat(metric string) Stat {
	v := a.values(metric)
	if len(v) == 0 {
		return Stat{}
	}
	slices.Sort(v)
	return Stat{N: len(v), Min: v[0], Median: median(v), Max: v[len(v)-1]}
}

func (a *Arm) values(metric string) []float64 {
	var v []float64
	if a == nil {
		return nil
	}
	for _, s := range a.Rounds {
		if x, ok := s.Values[metric]; ok {
			v = append(v, x)
		}
	}
	if x, ok := a.Extra[metric]; ok && len(v) == 0 {
		v = append(v, x)
	}
	return v
}

// median wants a sorted, non-empty list.
func median(v []float64) float64 {
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// noisy is the half-width of a ratio's interval, relative to the ratio, above which it says little: two runs whose figures are each known
// to 7 % are known to agree within 10 %, which is what anybody who repeats a run may expect.
const noisy = 0.07

// Ratio is how many times as large one arm's figure is as another's, with a 95 % interval; it has no bounds below three rounds.
type Ratio struct {
	Value, Low, High float64
	N                int // rounds, of the side that has fewer
	// Disturbed means that other programs have used much of the machine meanwhile.
	Disturbed bool
}

// Valid reports whether there was anything to divide.
func (r Ratio) Valid() bool { return r.Value > 0 && !math.IsInf(r.Value, 0) }

// fewest is the number of rounds below which nothing can be said of how sure a ratio is.
const fewest = 3

// Noise reports whether the interval is so wide that the figure says little, or the machine was not the benchmark's.
func (r Ratio) Noise() bool { return r.Disturbed || (r.High-r.Low)/2 > noisy*r.Value }

// Differs reports whether the interval leaves 1 out.
func (r Ratio) Differs() bool { return r.Low > 1 || r.High < 1 }

// Spread is the half-width of the interval in percent of the ratio.
func (r Ratio) Spread() float64 { return 100 * (r.High - r.Low) / 2 / r.Value }

// Short is "0.87", or "1/150" for what is less than a twentieth.
func (r Ratio) Short() string {
	switch {
	case !r.Valid():
		return "–"
	case r.Value < 0.05:
		return "1/" + thousands(int64(math.Round(1/r.Value)))
	}
	return Format(r.Value)
}

// String is "0.87 ±3 %", with "noise" after it when it is.
func (r Ratio) String() string {
	switch {
	case !r.Valid():
		return "–"
	case r.N < fewest:
		return fmt.Sprintf("%s of %d round(s), noise", r.Short(), r.N)
	case r.Noise():
		return fmt.Sprintf("%s ±%.0f %% noise", r.Short(), math.Ceil(r.Spread()))
	}
	return fmt.Sprintf("%s ±%.0f %%", r.Short(), math.Ceil(r.Spread()))
}

// disturbing is the part of the machine above which others disturb.
const disturbing = 0.10

// Disturbed reports whether others have used much of the machine while the case was measured, and whether that matters for the figure
// that counts.
func (c *Case) Disturbed() bool { return len(c.Metrics) > 0 && c.DisturbedIn(c.Metrics[0]) }

// DisturbedIn is Disturbed for any figure. It is false for what does not depend on who else wants the processors: memory.
func (c *Case) DisturbedIn(metric string) bool {
	return c.Others > disturbing && !slices.Contains([]string{PerClient, Peak, AllocsOp, BytesOp}, metric)
}

// Ratio is RatioOf two arms of the case.
func (c *Case) Ratio(a, b *Arm, metric string) Ratio {
	r := RatioOf(a, b, metric)
	r.Disturbed = c.DisturbedIn(metric)
	return r
}

// RatioOf is how many times as large a metric is for arm a as for arm b of the same case. Arms take turns, so a round of one is divided
// by the same round of the other: what slowed the machine down for a while slowed both, and falls out. The value is the median of these
// quotients; the interval is that of the sign test, which knows nothing of the noise's shape: of nine rounds, from the second smallest
// quotient to the second largest. Below nine rounds it is all that was seen.
func RatioOf(a, b *Arm, metric string) Ratio { return center(logRatios(a, b, metric)) }

// Independent is RatioOf for arms of different runs, whose rounds have nothing to do with each other: each round of the one is
// divided by each of the other, and the interval is that of Mann and Whitney's test. Below four rounds it is all that was seen.
func Independent(a, b *Arm, metric string) Ratio {
	return shift(logs(a.values(metric)), logs(b.values(metric)))
}

// Independent2 is (a to b of one run) to (c to d of another): how a's ratio to its baseline b has changed from c's to d.
func Independent2(a, b, c, d *Arm, metric string) Ratio {
	return shift(logRatios(a, b, metric), logRatios(c, d, metric))
}

// logRatios are the logarithms of the quotients of rounds of the same number, of those that have one.
func logRatios(a, b *Arm, metric string) []float64 {
	x, y := a.values(metric), b.values(metric)
	var q []float64
	for i := range min(len(x), len(y)) {
		q = append(q, x[i]/y[i])
	}
	return logs(q)
}

// logs leaves out what has no logarithm.
func logs(v []float64) []float64 {
	var l []float64
	for _, x := range v {
		if x > 0 && !math.IsInf(x, 0) {
			l = append(l, math.Log(x))
		}
	}
	return l
}

// center is the median of a sample of logarithms.
func center(v []float64) Ratio { return interval(v, heads(len(v)), len(v)) }

// shift is how far x lies above y.
func shift(x, y []float64) Ratio {
	var differences []float64
	for _, a := range x {
		for _, b := range y {
			differences = append(differences, a-b)
		}
	}
	return interval(differences, rankSums(len(x), len(y)), min(len(x), len(y)))
}

// interval is the median of the candidates, and those between which 95 % of all samples would have it: ways[k] tells in how many ways
// k candidates can lie on the wrong side if there is nothing to find. The result is zero, and so not Valid, without candidates.
func interval(candidates, ways []float64, rounds int) Ratio {
	if len(candidates) == 0 {
		return Ratio{}
	}
	slices.Sort(candidates)
	all, below, cut := 0.0, 0.0, 0
	for _, w := range ways {
		all += w
	}
	for below+ways[cut] <= 0.025*all {
		below += ways[cut]
		cut++
	}
	cut = max(cut, 1)
	if rounds < fewest {
		return Ratio{Value: math.Exp(median(candidates)), High: math.Inf(1), N: rounds}
	}
	return Ratio{Value: math.Exp(median(candidates)), Low: math.Exp(candidates[cut-1]), High: math.Exp(candidates[len(candidates)-cut]), N: rounds}
}

// heads counts the outcomes of n coins by their heads.
func heads(n int) []float64 {
	ways := make([]float64, n+1)
	ways[0] = 1
	for range n {
		for k := n; k > 0; k-- {
			ways[k] += ways[k-1]
		}
	}
	return ways
}

// rankSums counts the orders of m and n things by the pairs of which that of the m comes first: the coefficients of Gauss's
// binomial, a product of (1-q^(n+i))/(1-q^i) for i from 1 to m.
func rankSums(m, n int) []float64 {
	ways := make([]float64, m*n+1)
	ways[0] = 1
	for i := 1; i <= m; i++ {
		for k := len(ways) - 1; k >= n+i; k-- {
			ways[k] -= ways[k-n-i]
		}
		for k := i; k < len(ways); k++ {
			ways[k] += ways[k-i]
		}
	}
	return ways
}
