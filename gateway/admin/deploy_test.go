package admin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/headpond/headpond/gateway/admin"
)

const deploy = "../../deploy/"

// promtool runs it; `make test-deps` installs it.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestRulesWithPromtool has promtool read the rules and run their tests.
func TestRulesWithPromtool(t *testing.T) {
	promtool(t, deploy+"prometheus", "check", "rules", "rules.yml")
	promtool(t, deploy+"prometheus", "test", "rules", "rules_test.yml")
}

// TestMetricsWithPromtool has promtool check the metrics in text form.
func TestMetricsWithPromtool(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	cmd.Stdin = get(newHandler(t, admin.Config{}), "/metrics").Body
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

type rule struct {
	Record, Alert, Expr string
	Annotations         map[string]string
}

func rules(t *testing.T) (list []rule) {
	t.Helper()
	text, err := os.ReadFile(deploy + "prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}
	return list
}

// expressions returns the expressions of the dashboard, by panel.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(deploy + "grafana/headpond.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	out, ids := map[string]string{}, map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d (%s) has nothing to show, or its number twice", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			out[p.Title+" "+target.RefID+fmt.Sprint(p.ID)] = target.Expr
		}
	}
	for _, v := range dashboard.Templating.List {
		if metric, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			metric, _, _ = strings.Cut(metric, ",")
			out["variable "+v.Name] = metric
		}
	}
	return out
}

var ourMetric = regexp.MustCompile(`(?:[a-z_]+:)?headpond_[a-z_]+[a-z](?::[a-z0-9_]+)?`)

// TestDeployNamesMetricsThereAre compares dashboard and rules with the metrics of a running
// gateway.
func TestDeployNamesMetricsThereAre(t *testing.T) {
	known := map[string]bool{}
	for name := range exported(t) {
		known["headpond_"+name] = true
	}
	all := expressions(t)
	if len(all) < 30 {
		t.Errorf("the dashboard has %d expressions", len(all))
	}
	for _, r := range rules(t) {
		known[r.Record] = true
		all[r.Record+r.Alert] = r.Expr
	}
	for where, expr := range all {
		for _, name := range ourMetric.FindAllString(expr, -1) {
			if !known[name] && !known[ofHistogram.ReplaceAllString(name, "")] {
				t.Errorf("%s names %s, which there is not", where, name)
			}
		}
	}
}

// TestDashboardIsPromQL has promtool read the dashboard's expressions, with values for Grafana's variables.
func TestDashboardIsPromQL(t *testing.T) {
	var file strings.Builder
	file.WriteString("groups:\n- name: dashboard\n  rules:\n")
	n := 0
	for where, expr := range expressions(t) {
		expr = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$listener", ".*", "$upstream", ".*").Replace(expr)
		if strings.Contains(expr, "$") {
			t.Errorf("%s: unknown variable in %s", where, expr)
		}
		n++
		fmt.Fprintf(&file, "  - record: r%d\n    expr: %q\n", n, expr)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, ".", "check", "rules", "--lint=none", path)
}

// TestAlertsLeadToTheRunbook looks for the section that an alert links to, and for one of each alert only.
func TestAlertsLeadToTheRunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (Headpond\w+)$`).FindAllStringSubmatch(string(text), -1) {
		sections[m[1]] = true
	}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		const runbook = "https://github.com/headpond/headpond/blob/main/docs/runbook.md#"
		if !sections[r.Alert] || r.Annotations["runbook_url"] != runbook+strings.ToLower(r.Alert) || r.Annotations["summary"] == "" {
			t.Errorf("%s: annotations %v, section %v", r.Alert, r.Annotations, sections[r.Alert])
		}
		delete(sections, r.Alert)
	}
	for name := range sections {
		t.Errorf("the runbook has a section about %s, which is no alert", name)
	}
}
