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

var page = template.Must(template.New("page").Funcs(template.FuncMap{"noise": noise, "grid": grid}).Parse(pageText))

// noise reports whether a cell marks its figure as noise.
func noise(cell string) bool {
	return strings.HasSuffix(cell, "noise") || strings.HasSuffix(cell, "(noise)")
}

// grid is the data for the page's template of a table.
func grid(rows [][]string, base string) any {
	return struct {
		Rows [][]string
		Base string // the first cell of the baseline's row
	}{rows, base}
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
	Charts []template.HTML // cost by number of clients
}

type caseView struct {
	*result.Case
	Rate   string
	Noise  string // why every figure is noise
	Rows   [][]string
	Less   string // what was subtracted for Net
	Net    [][]string
	Errors []string
	Plots  []template.HTML
}

// HTML writes one page without scripts and without other files.
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
		if slices.Contains(c.Metrics, id) && id != c.Metrics[0] {
			drawn = append(drawn, id)
		}
	}
	for _, id := range drawn {
		v.plot(bars(c, id))
	}
	v.plot(percentiles(c))
	return v
}

// plot adds a drawing. Its text is already escaped.
func (v *caseView) plot(drawing string) {
	if drawing != "" {
		v.Plots = append(v.Plots, template.HTML(drawing))
	}
}

// family returns a title for cases that differ only in the number of clients: the text before that number in their
// titles.
func family(name string, c *result.Case) string {
	what, _, _ := strings.Cut(c.Title, ",")
	return name + ": " + what
}

// charts draws the families of cases that differ only in the number of clients.
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
			drawn = append(drawn, template.HTML("<figure><figcaption>"+template.HTMLEscapeString(family(name, families[name][0]))+"</figcaption>"+d+"</figure>"))
		}
	}
	return drawn
}
