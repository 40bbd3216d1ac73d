package result

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// noisy is the half-width of a ratio's interval, relative to the ratio, above which it says little.
const noisy = 0.10

// Ratio is the quotient of two medians with a 95 % bootstrap interval.
type Ratio struct {
	Value, Low, High float64
}

// Valid reports whether there was anything to divide.
func (r Ratio) Valid() bool { return r.Value > 0 && !math.IsInf(r.Value, 0) }

// Noise reports whether the interval is so wide that the figure says little.
func (r Ratio) Noise() bool { return (r.High-r.Low)/2 > noisy*r.Value }

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
	if !r.Valid() {
		return "–"
	}
	s := fmt.Sprintf("%s ±%.0f %%", r.Short(), math.Ceil(r.Spread()))
	if r.Noise() {
		s += " noise"
	}
	return s
}

// RatioOf divides the medians of a metric of two arms of a case. Rounds were taken in turn, so they are resampled in pairs when both
// arms have as many: what slowed the machine down for a while slowed both.
func RatioOf(a, b *Arm, metric string) Ratio {
	x, y := a.values(metric), b.values(metric)
	if len(x) == len(y) {
		return bootstrap(paired(x, y))
	}
	return bootstrap(quotient(alone(x), alone(y)))
}

// Independent is RatioOf for arms of different runs, whose rounds have nothing to do with each other.
func Independent(a, b *Arm, metric string) Ratio {
	return bootstrap(quotient(alone(a.values(metric)), alone(b.values(metric))))
}

// Independent2 is (a to b of one run) to (c to d of another): how a's ratio to its baseline b has changed from c's to d.
func Independent2(a, b, c, d *Arm, metric string) Ratio {
	return bootstrap(quotient(pair(a, b, metric), pair(c, d, metric)))
}

// statistic computes a figure from rounds, or with a source of randomness from a resample of them. It is NaN without rounds.
type statistic func(r *rand.Rand) float64

func pair(a, b *Arm, metric string) statistic {
	x, y := a.values(metric), b.values(metric)
	if len(x) == len(y) {
		return paired(x, y)
	}
	return quotient(alone(x), alone(y))
}

// alone is the median of a list.
func alone(v []float64) statistic {
	s := make([]float64, len(v))
	return func(r *rand.Rand) float64 {
		if len(v) == 0 {
			return math.NaN()
		}
		copy(s, v)
		if r != nil {
			for i := range s {
				s[i] = v[r.IntN(len(v))]
			}
		}
		slices.Sort(s)
		return median(s)
	}
}

// paired is the quotient of the medians of lists of one length whose elements belong together.
func paired(x, y []float64) statistic {
	sx, sy := make([]float64, len(x)), make([]float64, len(y))
	return func(r *rand.Rand) float64 {
		if len(x) == 0 {
			return math.NaN()
		}
		copy(sx, x)
		copy(sy, y)
		if r != nil {
			for i := range sx {
				j := r.IntN(len(x))
				sx[i], sy[i] = x[j], y[j]
			}
		}
		slices.Sort(sx)
		slices.Sort(sy)
		return median(sx) / median(sy)
	}
}

func quotient(a, b statistic) statistic {
	return func(r *rand.Rand) float64 { return a(r) / b(r) }
}

// resamples is enough for the second digit of an interval's ends.
const resamples = 2000

// bootstrap resamples with a fixed seed, so that a report is the same each time it is made. The ratio is zero, and so not Valid,
// when there is nothing to divide.
func bootstrap(s statistic) Ratio {
	value := s(nil)
	if math.IsNaN(value) || math.IsInf(value, 0) || value <= 0 {
		return Ratio{}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	ratios := make([]float64, resamples)
	for i := range ratios {
		ratios[i] = s(rng)
	}
	slices.Sort(ratios)
	return Ratio{Value: value, Low: ratios[resamples/40], High: ratios[resamples-1-resamples/40]}
}
