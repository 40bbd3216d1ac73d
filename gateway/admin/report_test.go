package admin_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// pond is a row of an extension of another module.
type pond struct {
	Name  string `json:"name"`
	Frogs int    `json:"frogs"`
	Water int    `json:"water"`
}

var ponds = admin.Report[pond]{
	Key: "ponds", Title: "Ponds",
	Columns: []admin.Column[pond]{
		admin.Text("pond", func(p pond) string { return p.Name }),
		admin.Count("frogs", func(p pond) float64 { return float64(p.Frogs) }),
	},
	Details: []admin.Column[pond]{
		admin.State("state", func(p pond) (admin.Level, string) {
			if p.Water == 0 {
				return admin.Bad, "without water"
			}
			return admin.Good, "full"
		}),
		admin.Bytes("water", func(p pond) float64 { return float64(p.Water) }),
		admin.Error("error", func(p pond) string { return strings.Repeat("no rain", oneIf(p.Water == 0)) }),
	},
	Labels:  []string{"pond"},
	Values:  func(p pond) []string { return []string{p.Name} },
	Metrics: []admin.RowMetric[pond]{admin.Gauge("pond_frogs", "Frogs.", func(p pond) float64 { return float64(p.Frogs) }), admin.Counter("pond_water_total", "Water.", func(p pond) float64 { return float64(p.Water) })},
	Trouble: func(p pond, now time.Time) string {
		since := now.Add(-time.Minute)
		return strings.Repeat("pond "+p.Name+" is dry"+admin.Since(&since, now), oneIf(p.Water == 0))
	},
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestReport: the rows of an extension are members of the status, and its table, sentences and metrics follow the
// Report.
func TestReport(t *testing.T) {
	h := newHandler(t, admin.Config{Snapshot: func() admin.Snapshot {
		return admin.Snapshot{Additions: []admin.Addition{ponds.Of([]pond{{Name: "mill", Frogs: 2, Water: 3 << 20}, {Name: "dry"}}), (&admin.Report[pond]{Key: "none"}).Of(nil)}}
	}})
	body := get(h, "/api/v1/status").Body.String()
	for _, want := range []string{`  "ponds": [
    {
      "name": "mill",
      "frogs": 2,
      "water": 3145728
    },`, `  "none": []`, "pond dry is dry since ", " (1m0s)"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	var s admin.Status
	if err := json.Unmarshal([]byte(body), &s); err != nil || len(s.Tables) != 2 || len(s.Trouble) != 1 {
		t.Fatalf("%v, %+v", err, s)
	}
	want := [][]string{{"pond", "frogs", "state", "water", "error"}, {"mill", "2", "full", "3.0 MiB", ""}, {"dry", "0", "without water", "0 B", "no rain"}}
	got := make([][]string, 3)
	for i, c := range s.Tables[0].Columns {
		got[0] = append(got[0], c.Title)
		for j, row := range s.Tables[0].Rows {
			got[1+j] = append(got[1+j], c.String(row[i]))
		}
		if c.Detail != (i >= 2) {
			t.Errorf("column %s: detail %v", c.Title, c.Detail)
		}
	}
	if !reflect.DeepEqual(got, want) || s.Tables[0].Rows[1][2].Level != admin.Bad {
		t.Errorf("%+v", s.Tables[0])
	}
	metrics := get(h, "/metrics").Body.String()
	for _, want := range []string{"# HELP headpond_pond_frogs Frogs.\n# TYPE headpond_pond_frogs gauge\n", `headpond_pond_frogs{pond="mill"} 2`, "# TYPE headpond_pond_water_total counter\n", `headpond_pond_water_total{pond="dry"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// TestDistinct: rows that would replace other rows, or members of the status, are refused.
func TestDistinct(t *testing.T) {
	key := func(key, title string) admin.Addition { return (&admin.Report[pond]{Key: key, Title: title}).Of(nil) }
	gauge := func(key, metric string) admin.Addition {
		return (&admin.Report[pond]{Key: key, Title: key, Metrics: []admin.RowMetric[pond]{admin.Gauge(metric, "Help.", func(pond) float64 { return 0 })}}).Of(nil)
	}
	for want, all := range map[string][]admin.Addition{
		"": {ponds.Of(nil), key("lakes", "Lakes"), gauge("frogs", "frogs")},
		`key "ponds" of report "Lakes" is already the key of report "Ponds"`:          {ponds.Of(nil), key("lakes", "Lakes"), key("ponds", "Lakes")},
		`key "upstreams" of report "Lakes" is already the key of the gateway`:         {key("upstreams", "Lakes")},
		`key "tables" of report "Lakes" is already the key of the gateway`:            {key("tables", "Lakes")},
		`key "pools" of report "Lakes" is already the key of the gateway`:             {key("pools", "Lakes")},
		`key "profile" of report "Lakes" is already the key of the gateway`:           {key("profile", "Lakes")},
		`report "Lakes" has no key`:                                                   {key("", "Lakes")},
		`metric "pond_frogs" of report "lakes" is already a metric of report "Ponds"`: {ponds.Of(nil), gauge("lakes", "pond_frogs")},
	} {
		err := admin.Distinct(all)
		if want == "" && err != nil || want != "" && (!errors.Is(err, admin.ErrConfig) || !strings.HasSuffix(err.Error(), want)) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
