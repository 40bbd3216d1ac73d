package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/headpond/headpond/bench/internal/result"
)

// Plots are drawn for the width of a phone and scale with the page.
const (
	plotWidth = 360
	nameWidth = 104 // for the arms' names
	barHeight = 18
)

// armClass gives arms the same colour in every plot. Other arms share the last one.
var armClass = map[string]int{
	"gateway-uring": 0, "gateway-epoll": 1, "gateway-goroutine": 2, "haproxy": 3, "haproxy-default": 4, "nginx": 5, "pgbouncer": 6, "pgbouncer-2": 10, "direct": 7,
	"headpond": 0, "tcppool": 0, "pgpool": 0, "sqlitepool": 0, "gateway-sqlite": 0, "library": 1, "pooled": 0, "ginroute": 1,
}

const classes = 12

// class returns the CSS class of an arm.
func class(name string) string {
	n, ok := armClass[name]
	if !ok {
		sum := 0
		for _, c := range name {
			sum += int(c)
		}
		n = 8 + sum%(classes-8)
	}
	return fmt.Sprintf("a%d", n)
}

// svg collects a drawing. Only the method text may add text: it escapes.
type svg struct{ strings.Builder }

func (s *svg) open(title string, height float64) {
	fmt.Fprintf(s, `<svg viewBox="0 0 %d %.0f" role="img" aria-label="%s">`, plotWidth, height, html.EscapeString(title))
	s.text(0, 11, "title", title)
}

func (s *svg) text(x, y float64, style, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, style, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, style)
}

// bars draws a metric of a case: medians with a line from the minimum to the maximum. It returns "" without figures.
func bars(c *result.Case, metric string) string {
	var arms []*result.Arm
	most := 0.0
	for _, a := range c.Arms {
		if st := a.Stat(metric); st.N > 0 {
			arms = append(arms, a)
			most = max(most, st.Max)
		}
	}
	if len(arms) == 0 || most <= 0 {
		return ""
	}
	m := result.MetricOf(metric)
	title := m.Label
	if m.Better != "" {
		title += ", " + m.Better + " is better"
	}
	var s svg
	s.open(title, float64(20+barHeight*len(arms)))
	scale := (plotWidth - nameWidth - 64) / most
	for i, a := range arms {
		st := a.Stat(metric)
		y := float64(20 + i*barHeight)
		s.text(nameWidth-4, y+12, "name", a.Name)
		fmt.Fprintf(&s, `<rect x="%d" y="%.1f" width="%.1f" height="%d" class="%s"><title>%s: %s (%s to %s)</title></rect>`, nameWidth, y+2, max(st.Median*scale, 1), barHeight-6,
			class(a.Name), html.EscapeString(a.Name), result.Format(st.Median), result.Format(st.Min), result.Format(st.Max))
		mid := y + barHeight/2 - 1
		s.line(nameWidth+st.Min*scale, mid, nameWidth+st.Max*scale, mid, "range")
		s.line(nameWidth+st.Min*scale, mid-3, nameWidth+st.Min*scale, mid+3, "range")
		s.line(nameWidth+st.Max*scale, mid-3, nameWidth+st.Max*scale, mid+3, "range")
		s.text(nameWidth+st.Max*scale+5, y+12, "value", result.Format(st.Median))
	}
	s.WriteString("</svg>")
	return s.String()
}

// series is a line of a chart.
type series struct {
	name string
	x, y []float64
}

// tick is a label on an axis.
type tick struct {
	at   float64
	text string
}

// chart draws lines over logarithmic axes. All values are positive.
func chart(title string, all []series, xs []tick) string {
	lowX, highX, lowY, highY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, l := range all {
		for i := range l.x {
			lowX, highX = min(lowX, l.x[i]), max(highX, l.x[i])
			lowY, highY = min(lowY, l.y[i]), max(highY, l.y[i])
		}
	}
	if len(all) == 0 || highX <= lowX || lowY <= 0 {
		return ""
	}
	const left, right, top, height = 54, 338, 22, 170
	lowY, highY = markBelow(lowY), markAbove(highY)
	px := func(x float64) float64 {
		return left + (right-left)*(math.Log(x)-math.Log(lowX))/(math.Log(highX)-math.Log(lowX))
	}
	py := func(y float64) float64 {
		return top + height - height*(math.Log(y)-math.Log(lowY))/max(math.Log(highY)-math.Log(lowY), 1e-9)
	}
	var s svg
	rows := (len(all) + 1) / 2
	s.open(title, float64(top+height+26+rows*14))
	for y := lowY; y <= highY*1.001; y = nextMark(y) {
		s.line(left, py(y), right, py(y), "grid")
		if decades := math.Log10(highY / lowY); decades < 4 || isPower(y) {
			s.text(left-4, py(y)+4, "name", mark(y))
		}
	}
	for _, t := range xs {
		if t.at >= lowX*0.999 && t.at <= highX*1.001 {
			s.line(px(t.at), top, px(t.at), top+height, "grid")
			s.text(px(t.at), top+height+15, "tick", t.text)
		}
	}
	for i, l := range all {
		var points strings.Builder
		for j := range l.x {
			fmt.Fprintf(&points, "%.1f,%.1f ", px(l.x[j]), py(l.y[j]))
		}
		fmt.Fprintf(&s, `<polyline points="%s" class="%s l"><title>%s</title></polyline>`, points.String(), class(l.name), html.EscapeString(l.name))
		x, y := float64(left+(i%2)*152), float64(top+height+33+(i/2)*14)
		fmt.Fprintf(&s, `<line x1="%.0f" y1="%.0f" x2="%.0f" y2="%.0f" class="%s l"/>`, x, y-4, x+22, y-4, class(l.name))
		s.text(x+27, y, "value", l.name)
	}
	s.WriteString("</svg>")
	return s.String()
}

// mark formats a value on an axis.
func mark(v float64) string {
	if v >= 1000 {
		return result.Format(v)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// isPower reports whether a value on an axis is a power of ten.
func isPower(v float64) bool {
	return math.Abs(math.Log10(v)-math.Round(math.Log10(v))) < 1e-9
}

// markBelow returns the largest of 1, 2, 5, 10, 20, … that is at most v.
func markBelow(v float64) float64 {
	m := math.Pow(10, math.Floor(math.Log10(v)))
	for nextMark(m) <= v {
		m = nextMark(m)
	}
	return m
}

// markAbove returns the smallest of them that is at least v.
func markAbove(v float64) float64 {
	m := markBelow(v)
	if m < v {
		m = nextMark(m)
	}
	return m
}

// nextMark returns the value after v in 1, 2, 5, 10, 20, …
func nextMark(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	switch m := v / p; {
	case m < 1.5:
		return 2 * p
	case m < 3:
		return 5 * p
	}
	return 10 * p
}

// percentiles draws the latencies of a case, from the median to one in 10,000.
func percentiles(c *result.Case) string {
	quantiles := []float64{0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999}
	var all []series
	for _, a := range c.Arms {
		if a.Latency == nil || a.Latency.Count() == 0 {
			continue
		}
		l := series{name: a.Name}
		for _, q := range quantiles {
			if float64(a.Latency.Count())*(1-q) < 1 {
				break
			}
			l.x = append(l.x, 1/(1-q))
			l.y = append(l.y, max(float64(a.Latency.Quantile(q))/1e3, 0.001))
		}
		all = append(all, l)
	}
	return chart("latency in µs by percentile, lower is better", all, []tick{{2, "50 %"}, {10, "90 %"}, {100, "99 %"}, {1000, "99.9 %"}, {10000, "99.99 %"}})
}

// concurrency draws the first metric of cases that differ only in their connections.
func concurrency(cases []*result.Case) string {
	var all []series
	var xs []tick
	byName := map[string]int{}
	for _, c := range cases {
		xs = append(xs, tick{float64(c.Conns), strconv.Itoa(c.Conns)})
		for _, a := range c.Arms {
			st := a.Stat(c.Metrics[0])
			if st.N == 0 || st.Median <= 0 {
				continue
			}
			i, ok := byName[a.Name]
			if !ok {
				i = len(all)
				byName[a.Name] = i
				all = append(all, series{name: a.Name})
			}
			all[i].x = append(all[i].x, float64(c.Conns))
			all[i].y = append(all[i].y, st.Median)
		}
	}
	m := result.MetricOf(cases[0].Metrics[0])
	return chart(m.Label+" against clients, "+m.Better+" is better", all, xs)
}
