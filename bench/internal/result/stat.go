package result

import (
	"fmt"
	"math"
	"slices"
)

// Stat summarises a metric over the rounds of an arm. It is zero, with N 0, if no round has the
// metric.
type Stat struct {
	N                int
	Min, Median, Max float64
}

// Stat summarises a metric.
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

// median returns the median of a sorted, non-empty list.
func median(v []float64) float64 {
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// noisy is the largest half-width of a meaningful ratio's interval, relative to the ratio. If two runs each know a
// figure to 7 %, they agree within 10 %, which a reader who repeats a run can expect.
const noisy = 0.07

// Ratio is one arm's figure divided by another's, with a 95 % interval. With fewer than three rounds it has no
// interval.
type Ratio struct {
	Value, Low, High float64
	N                int // number of rounds, of the arm with fewer
	// Disturbed means that other programs used much of the machine meanwhile.
	Disturbed bool
}

// Valid reports whether both figures exist and the ratio is finite.
func (r Ratio) Valid() bool { return r.Value > 0 && !math.IsInf(r.Value, 0) }

// fewest is the number of rounds below which the interval of a ratio is unknown.
const fewest = 3

// Noise reports whether the interval is too wide for the figure to mean much, or other programs used the machine.
func (r Ratio) Noise() bool { return r.Disturbed || (r.High-r.Low)/2 > noisy*r.Value }

// Differs reports whether the interval excludes 1.
func (r Ratio) Differs() bool { return r.Low > 1 || r.High < 1 }

// Spread is the half-width of the interval in percent of the ratio.
func (r Ratio) Spread() float64 { return 100 * (r.High - r.Low) / 2 / r.Value }

// Short returns "0.87", or "1/150" for a ratio below a twentieth.
func (r Ratio) Short() string {
	switch {
	case !r.Valid():
		return "–"
	case r.Value < 0.05:
		return "1/" + thousands(int64(math.Round(1/r.Value)))
	}
	return Format(r.Value)
}

// String returns "0.87 ±3 %", followed by "noise" if Noise is true.
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

// disturbing is the fraction of the machine above which its use by others disturbs a measurement.
const disturbing = 0.10

// Disturbed reports whether others used much of the machine while the case was measured, and whether that matters for
// its first metric.
func (c *Case) Disturbed() bool { return len(c.Metrics) > 0 && c.DisturbedIn(c.Metrics[0]) }

// DisturbedIn is Disturbed for any metric. It is false for memory, which does not depend on the use of the processors.
func (c *Case) DisturbedIn(metric string) bool {
	return c.Others > disturbing && !slices.Contains([]string{PerClient, Peak, AllocsOp, BytesOp}, metric)
}

// Ratio is RatioOf two arms of the case.
func (c *Case) Ratio(a, b *Arm, metric string) Ratio {
	r := RatioOf(a, b, metric)
	r.Disturbed = c.DisturbedIn(metric)
	return r
}

// RatioOf divides a metric of arm a by that of arm b in the same case. Arms are measured alternately, and each round of
// one is divided by the same round of the other: if the machine was slower for a while, both were, and the quotient
// does not change. The value is the median of the quotients. The interval is that of the sign test, which makes no
// assumption about the noise: with nine rounds, from the second smallest quotient to the second largest. With fewer
// rounds it contains all quotients.
func RatioOf(a, b *Arm, metric string) Ratio { return center(logRatios(a, b, metric)) }

// Independent is RatioOf for arms of different runs, whose rounds do not correspond: each round of the one is divided
// by each of the other. The interval is that of the Mann-Whitney test. With fewer than four rounds it contains all
// quotients.
func Independent(a, b *Arm, metric string) Ratio {
	return shift(logs(a.values(metric)), logs(b.values(metric)))
}

// Independent2 is (a to b of one run) to (c to d of another): the change of the ratio to the baseline, from c/d to a/b.
func Independent2(a, b, c, d *Arm, metric string) Ratio {
	return shift(logRatios(a, b, metric), logRatios(c, d, metric))
}

// logRatios returns the logarithms of the quotients of corresponding rounds.
func logRatios(a, b *Arm, metric string) []float64 {
	x, y := a.values(metric), b.values(metric)
	var q []float64
	for i := range min(len(x), len(y)) {
		q = append(q, x[i]/y[i])
	}
	return logs(q)
}

// logs returns the logarithms of positive values and drops the others.
func logs(v []float64) []float64 {
	var l []float64
	for _, x := range v {
		if x > 0 && !math.IsInf(x, 0) {
			l = append(l, math.Log(x))
		}
	}
	return l
}

// center returns the median of a sample of logarithms, with its interval.
func center(v []float64) Ratio { return interval(v, heads(len(v)), len(v)) }

// shift returns how far x lies above y.
func shift(x, y []float64) Ratio {
	var differences []float64
	for _, a := range x {
		for _, b := range y {
			differences = append(differences, a-b)
		}
	}
	return interval(differences, rankSums(len(x), len(y)), min(len(x), len(y)))
}

// interval returns the median of the candidates and the interval that contains it in 95 % of all samples. ways[k] is
// the number of ways in which k candidates can lie on the wrong side by chance. Without candidates the result is zero,
// which is not Valid.
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

// heads returns for each number of heads how many outcomes of n coins have it.
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

// rankSums counts the orders of m and n elements by the number of pairs in which the element of m comes first: the
// Gaussian binomial coefficients, a product of (1-q^(n+i))/(1-q^i) for i from 1 to m.
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
