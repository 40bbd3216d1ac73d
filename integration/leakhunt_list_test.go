package integration

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	huntList = filepath.Join("testdata", "leakhunt.txt")
	huntDocs = filepath.Join("..", "docs", "session-state.md")
)

// question is one of the two questions about a case.
const (
	leaks  = "leak"
	losses = "loss"
)

// huntLine is a line of testdata/leakhunt.txt: the ways in which a kind goes wrong.
type huntLine struct {
	target, question, kind string
	ways                   []string
	reason                 string
}

func (l *huntLine) key() string { return l.target + " " + l.question + " " + l.kind }

// allWays stands for all ways, allBut for all except those after it.
const (
	allWays = "*"
	allBut  = "!"
)

// wayNames returns the names of all ways.
func wayNames() []string {
	var names []string
	for _, w := range stayingWays() {
		names = append(names, w.name)
	}
	names = append(names, restarting.name)
	for _, w := range leavingWays() {
		names = append(names, w.name)
	}
	return names
}

// withoutWays returns the names of all ways except some.
func withoutWays(some []string) []string {
	return slices.DeleteFunc(wayNames(), func(w string) bool { return slices.Contains(some, w) })
}

// parseWays reads the ways of a line. Unknown names are returned unchanged.
func parseWays(text string) []string {
	if text == allWays {
		return wayNames()
	}
	some, but := strings.CutPrefix(text, allBut)
	if but {
		return withoutWays(strings.Split(some, ","))
	}
	return strings.Split(some, ",")
}

// formatWays formats a list of ways in the shorter of the two forms.
func formatWays(ways []string) string {
	others := withoutWays(ways)
	switch {
	case len(others) == 0:
		return allWays
	case len(others) < len(ways):
		return allBut + strings.Join(others, ",")
	}
	return strings.Join(ways, ",")
}

// readHuntList reads testdata/leakhunt.txt, by key.
func readHuntList(t *testing.T) map[string]*huntLine {
	t.Helper()
	lines := map[string]*huntLine{}
	n := 0
	for text := range strings.Lines(readFile(t, huntList)) {
		n++
		text = strings.TrimSpace(text)
		if text == "" || text[0] == '#' {
			continue
		}
		what, reason, _ := strings.Cut(text, " # ")
		fields := strings.Fields(what)
		if len(fields) != 4 {
			t.Fatalf("%s:%d: want: mode question kind ways # reason", huntList, n)
		}
		l := &huntLine{fields[0], fields[1], fields[2], parseWays(fields[3]), strings.TrimSpace(reason)}
		if l.reason == "" && !*huntRewrite {
			t.Errorf("%s:%d: no reason", huntList, n)
		}
		for _, w := range strings.Split(strings.TrimPrefix(fields[3], allBut), ",") {
			if w != allWays && !slices.Contains(wayNames(), w) {
				t.Errorf("%s:%d: there is no way %s", huntList, n, w)
			}
		}
		if !slices.ContainsFunc(huntKinds(), func(k kind) bool { return k.name == l.kind }) {
			t.Errorf("%s:%d: there is no kind %s", huntList, n, l.kind)
		}
		lines[l.key()] = l
	}
	return lines
}

// compare requires that exactly the listed cases go wrong.
func (h *hunt) compare() {
	listed := readHuntList(h.t)
	if *huntRewrite {
		if !*huntAll {
			h.t.Fatal("-leakhunt-rewrite needs -leakhunt")
		}
		h.writeHuntList(listed)
		h.writeHuntTable()
		return
	}
	wrong := 0
	for _, id := range slices.SortedFunc(maps.Keys(h.verdicts), compareCases) {
		v := h.verdicts[id]
		for question, what := range map[string]string{leaks: v.leak, losses: v.loss} {
			if strings.HasPrefix(id.target, "pgbouncer") {
				continue
			}
			if what != "" {
				wrong++
			}
			l := listed[(&huntLine{target: id.target, question: question, kind: id.kind}).key()]
			expected := l != nil && slices.Contains(l.ways, id.way)
			switch {
			case what != "" && !expected:
				h.t.Errorf("%s in mode %s: %s after %s: %s", question, id.target, id.kind, id.way, what)
			case what == "" && expected:
				h.t.Errorf("no %s any more in mode %s: %s after %s: take it off %s (make leakhunt REWRITE=1)", question, id.target, id.kind, id.way, huntList)
			}
		}
	}
	h.t.Logf("%d leaks and losses, all in %s", wrong, huntList)
}

func compareCases(a, b caseID) int {
	return cmp.Or(cmp.Compare(a.target, b.target), cmp.Compare(a.kind, b.kind), cmp.Compare(a.way, b.way))
}

const huntListHead = `# What goes wrong in the leak hunt today (integration/leakhunt_test.go): mode, question, kind of state, ways, and the reason. A leak: another
# client sees the state. A loss: the client itself misses it. "*" stands for all ways, "!" for all but these. A case that goes wrong and is not
# here fails the tests, and so does one that is here and goes wrong no longer. ` + "`make leakhunt REWRITE=1`" + ` writes the lines anew and keeps the reasons.

`

// writeHuntList writes the current results with the known reasons.
func (h *hunt) writeHuntList(listed map[string]*huntLine) {
	var b strings.Builder
	b.WriteString(huntListHead)
	for _, target := range h.targets {
		if target.kind != "headpond" {
			continue
		}
		for _, question := range []string{leaks, losses} {
			for _, k := range h.kinds {
				l := &huntLine{target: target.name, question: question, kind: k.name}
				for _, w := range wayNames() {
					v := h.verdicts[caseID{target.name, k.name, w}]
					if question == leaks && v.leak != "" || question == losses && v.loss != "" {
						l.ways = append(l.ways, w)
						h.t.Logf("%s after %s: %s", l.key(), w, map[string]string{leaks: v.leak, losses: v.loss}[question])
					}
				}
				if len(l.ways) == 0 {
					continue
				}
				fmt.Fprintf(&b, "%s %s", l.key(), formatWays(l.ways))
				if old := listed[l.key()]; old != nil && old.reason != "" {
					b.WriteString(" # " + old.reason)
				}
				b.WriteString("\n")
			}
			b.WriteString("\n")
		}
	}
	if err := os.WriteFile(huntList, []byte(strings.TrimRight(b.String(), "\n")+"\n"), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// Markers of the table in docs/session-state.md.
const (
	tableBegin = "<!-- the leak hunt's table: make leakhunt REWRITE=1 -->\n"
	tableEnd   = "<!-- end of the leak hunt's table -->\n"
)

// huntColumns are the targets, in the order of the table.
var huntColumns = []string{"transaction", strictly, "session", "pgbouncer-transaction", "pgbouncer-session"}

// writeHuntTable writes the table from the current results.
func (h *hunt) writeHuntTable() {
	version := pgBouncerVersion()
	if version == "" {
		h.t.Fatal("the table needs PgBouncer: install it")
	}
	wrong := func(target, kind string) (leak, loss int) {
		for id, v := range h.verdicts {
			if id.target == target && id.kind == kind {
				leak += count(v.leak != "")
				loss += count(v.loss != "")
			}
		}
		return leak, loss
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| state | cases | direct | Headpond, transaction | Headpond, strict | Headpond, session | %s, transaction | %s, session |\n|---|---|---|---|---|---|---|---|\n", version, version)
	for _, row := range huntRows(huntColumns, wrong) {
		b.WriteString(row)
	}
	docs := readFile(h.t, huntDocs)
	before, rest, found := strings.Cut(docs, tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		h.t.Fatalf("%s has no place for the table", huntDocs)
	}
	if err := os.WriteFile(huntDocs, []byte(before+tableBegin+"\n"+b.String()+"\n"+tableEnd+after), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// huntRows returns a row for each group of kinds, and one for all.
func huntRows(columns []string, wrong func(target, kind string) (leak, loss int)) []string {
	var groups []string
	for _, k := range huntKinds() {
		if !slices.Contains(groups, k.group) {
			groups = append(groups, k.group)
		}
	}
	var rows []string
	for _, group := range append(groups, "all") {
		cells := make([]string, len(columns))
		cases := 0
		for i, target := range columns {
			leak, loss := 0, 0
			for _, k := range huntKinds() {
				if k.group != group && group != "all" {
					continue
				}
				a, b := wrong(target, k.name)
				leak, loss = leak+a, loss+b
				if i == 0 {
					cases += len(wayNames())
				}
			}
			cells[i] = fmt.Sprintf("%d / %d", leak, loss)
		}
		rows = append(rows, fmt.Sprintf("| %s | %d | 0 / 0 | %s |\n", group, cases, strings.Join(cells, " | ")))
	}
	return rows
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestLeakHuntTable: Headpond's columns in docs/session-state.md agree with testdata/leakhunt.txt.
func TestLeakHuntTable(t *testing.T) {
	listed := readHuntList(t)
	wrong := func(target, kind string) (leak, loss int) {
		n := func(question string) int {
			if l := listed[target+" "+question+" "+kind]; l != nil {
				return len(l.ways)
			}
			return 0
		}
		return n(leaks), n(losses)
	}
	docs := readFile(t, huntDocs)
	for _, row := range huntRows(huntColumns[:3], wrong) {
		if !strings.Contains(docs, strings.TrimSuffix(row, "\n")) { // PgBouncer's columns follow
			t.Errorf("%s does not have the row of %s; make leakhunt REWRITE=1 writes it:\n%s", huntDocs, huntList, row)
		}
	}
}
