package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/report"
	"github.com/headpond/headpond/bench/internal/result"
)

// sample has two cases of a family, a paced one, and names that would break a page without escaping.
func sample() *result.Results {
	r := &result.Results{
		Schema: result.Schema, Command: `headpond bench "<engine>"`, Versions: map[string]string{"go": "go1"}, Missing: []string{"nginx is not installed: <b>"},
		Settings: result.Settings{Rounds: 3, Seconds: 1, Loops: 1},
	}
	for i, id := range []string{"W1c/1", "W1c/64", "W1c/64@70"} {
		c := &result.Case{ID: id, Suite: "tcp", Title: "a <title> & more", Conns: []int{1, 64, 64}[i], Metrics: []string{result.CPU, result.Throughput, result.P99, result.Peak}, Baseline: "haproxy"}
		if i == 2 {
			c.Rate = 5000
		}
		for j, name := range []string{"gateway-uring", "haproxy", "</svg><script>alert(1)</script>"} {
			a := &result.Arm{Name: name}
			for k := range 3 {
				h := new(hist.Histogram)
				for n := range 2000 {
					h.Record(time.Duration(n*(j+1)) * time.Microsecond)
				}
				a.Add(result.Sample{Latency: h, Values: map[string]float64{
					result.CPU: float64(4*(j+1)) + float64(k)/10, result.Throughput: 1000, result.P99: float64(100 * (j + 1)), result.Peak: 12,
				}})
			}
			c.Arms = append(c.Arms, a)
		}
		c.Arms = append(c.Arms, &result.Arm{Name: "broken", Error: "it <died>"}, &result.Arm{Name: "direct", Rounds: []result.Sample{{Values: map[string]float64{result.Throughput: 2000}}}})
		r.Cases = append(r.Cases, c)
	}
	return r
}

func TestPageIsSelfContainedAndEscaped(t *testing.T) {
	var b strings.Builder
	if err := report.HTML(&b, sample()); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, forbidden := range []string{"<script", "http://", "https://", "src=", "@import", "url(", "<title> &", "<b>", "<died>", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(page, forbidden) {
			t.Errorf("the page has %q", forbidden)
		}
	}
	svgs := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1)
	if len(svgs) != 3*4+1 { // CPU, throughput, memory and latency of each case, and cost against clients
		t.Errorf("%d drawings", len(svgs))
	}
	for _, s := range svgs {
		d := xml.NewDecoder(strings.NewReader(s))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, s)
			}
		}
	}
}

func TestTables(t *testing.T) {
	var b strings.Builder
	if err := report.Terminal(&b, sample()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.51 ±", "5,000 op/s asked of each arm", "broken: it <died>", "Not measured: nginx", "TCP, 64 clients  haproxy 8.10 µs/op   0.51", "100 µs"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	md := report.Markdown(sample())
	if !strings.Contains(md, "| TCP, 64 clients | haproxy 8.10 µs/op | 0.51 | – | – | 200 µs | 100 µs | – | – |") {
		t.Error(md)
	}
	if empty := report.Markdown(&result.Results{}); empty != "" {
		t.Errorf("nothing measured gives %q", empty)
	}
}
