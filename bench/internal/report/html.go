package report

import (
	_ "embed"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/headpond/headpond/bench/internal/result"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"noise": noise}).Parse(pageText))

// noise reports whether a cell says that its figure is.
func noise(cell string) bool {
	return strings.HasSuffix(cell, "noise") || strings.HasSuffix(cell, "(noise)")
}

// view is what the page shows.
type view struct {
	Title   string
	Facts   []string
	HowTo   []string
	Missing []string
	Summary [][]string
	Note    string
	Suites  []suiteView
}

type suiteView struct {
	Name   string
	Cases  []caseView
	Charts []template.HTML // cost against concurrency
}

type caseView struct {
	*result.Case
	Rate   string
	Noise  string // why all is
	Rows   [][]string
	Less   string // what Net is
	Net    [][]string
	Errors []string
	Plots  []template.HTML
}

// HTML writes one page that needs no other file and runs no script.
func HTML(w io.Writer, r *result.Results) error {
	v := view{Title: "Headpond benchmarks, " + r.Started.Format("2006-01-02"), Facts: Facts(r), HowTo: howTo, Missing: r.Missing, Summary: Summary(r), Note: summaryNote}
	for _, c := range r.Cases {
		i := slices.IndexFunc(v.Suites, func(s suiteView) bool { return s.Name == c.Suite })
		if i < 0 {
			i = len(v.Suites)
			v.Suites = append(v.Suites, suiteView{Name: c.Suite})
		}
		v.Suites[i].Cases = append(v.Suites[i].Cases, caseOf(c))
	}
	for i := range v.Suites {
		v.Suites[i].Charts = charts(v.Suites[i].Cases)
	}
	return page.Execute(w, v)
}

func caseOf(c *result.Case) caseView {
	v := caseView{Case: c, Rows: rows(c)}
	if net := c.Net(); net != nil {
		v.Less, v.Net = lessFloor(c), rows(net)
	}
	if c.Rate > 0 {
		v.Rate = result.Format(c.Rate)
	}
	if c.Disturbed() {
		v.Noise = disturbed(c)
	}
	for _, a := range c.Arms {
		if a.Error != "" {
			v.Errors = append(v.Errors, a.Name+": "+a.Error)
		}
	}
	drawn := []string{c.Metrics[0]}
	for _, id := range []string{result.Throughput, result.GBs, result.Peak} {
		if slices.Contains(c.Metrics, id) {
			drawn = append(drawn, id)
		}
	}
	for _, id := range drawn {
		v.plot(bars(c, id))
	}
	v.plot(percentiles(c))
	return v
}

// plot adds a drawing, all of whose text is escaped already.
func (v *caseView) plot(drawing string) {
	if drawing != "" {
		v.Plots = append(v.Plots, template.HTML(drawing))
	}
}

// charts draws the families of cases that differ in their number of clients only.
func charts(cases []caseView) []template.HTML {
	families := map[string][]*result.Case{}
	var order []string
	for _, c := range cases {
		i := strings.LastIndexByte(c.ID, '/')
		if i < 0 || c.Conns == 0 || c.Rate != "" {
			continue
		}
		name := c.ID[:i]
		if families[name] == nil {
			order = append(order, name)
		}
		families[name] = append(families[name], c.Case)
	}
	var drawn []template.HTML
	for _, name := range order {
		if len(families[name]) < 2 {
			continue
		}
		if d := concurrency(families[name]); d != "" {
			drawn = append(drawn, template.HTML("<figure><figcaption>"+template.HTMLEscapeString(name)+"</figcaption>"+d+"</figure>"))
		}
	}
	return drawn
}
