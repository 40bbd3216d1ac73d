package top

import (
	"cmp"
	"slices"
	"strings"
)

// style is how a text is drawn.
type style uint8

const (
	plain style = iota
	bold
	dim
	good
	warn
	bad
	heading
	selected
)

// piece is a text in one style.
type piece struct {
	text  string // clean
	style style
}

// Line is a line of a frame.
type Line []piece

// add appends a text, made clean.
func (l *Line) add(st style, text string) { *l = append(*l, piece{clean(text), st}) }

// columns returns how many columns the line takes.
func (l Line) columns() (n int) {
	for _, p := range l {
		n += columnsOf(p.text)
	}
	return n
}

// fit cuts the line to n columns.
func (l Line) fit(n int) (out Line) {
	for _, p := range l {
		p.text = clip(p.text, n)
		out = append(out, p)
		n -= columnsOf(p.text)
	}
	return out
}

// column describes a column of a table.
type column struct {
	title string
	right bool // aligned right: numbers
	least int  // the width that it may be cut to; 0 = it is not cut
	drop  int  // the column with the greatest is left out first where there is no room; 0 = never
}

// cell is a value in a row.
type cell struct {
	text  string
	value float64 // for the order of columns that are aligned right
	style style
}

// field is a name and a value of a row's details.
type field struct{ name, value string }

// row is a row of a table.
type row struct {
	id     string
	cells  []cell
	fields func() []field // the details
}

// table is the content of a view.
type table struct {
	columns []column
	rows    []row
}

// contains reports whether a cell of the row has a text, which is in lower case.
func (r *row) contains(text string) bool {
	return slices.ContainsFunc(r.cells, func(c cell) bool { return strings.Contains(strings.ToLower(c.text), text) })
}

// filter removes the rows without a text.
func (t *table) filter(text string) {
	text = strings.ToLower(text)
	t.rows = slices.DeleteFunc(t.rows, func(r row) bool { return !r.contains(text) })
}

// sort sorts by a column: numbers from the greatest, texts from the first.
func (t *table) sort(title string, reversed bool) {
	i := slices.IndexFunc(t.columns, func(c column) bool { return c.title == title })
	if i < 0 {
		return
	}
	slices.SortStableFunc(t.rows, func(a, b row) int {
		if reversed {
			a, b = b, a
		}
		if t.columns[i].right {
			return cmp.Compare(b.cells[i].value, a.cells[i].value)
		}
		return cmp.Compare(a.cells[i].text, b.cells[i].text)
	})
}

// shrink removes the columns in which no row has a text, unless there is no row.
func (t *table) shrink() {
	for i := len(t.columns) - 1; i >= 0 && len(t.rows) > 0; i-- {
		used := func(r row) bool { return r.cells[i].text != "" }
		if !slices.ContainsFunc(t.rows, used) {
			t.columns = slices.Delete(t.columns, i, i+1)
			for j := range t.rows {
				t.rows[j].cells = slices.Delete(t.rows[j].cells, i, i+1)
			}
		}
	}
}

// layout says which columns are drawn, and how wide.
type layout struct {
	columns []int // indexes
	widths  []int
	gap     int // between columns
}

// layout fits the columns of some rows into a width: it narrows the gaps, leaves columns out, and cuts texts.
func (t *table) layout(rows []row, width int) layout {
	l := layout{gap: 2}
	for i, c := range t.columns {
		w := columnsOf(c.title)
		for _, r := range rows {
			w = max(w, columnsOf(clean(r.cells[i].text)))
		}
		l.columns, l.widths = append(l.columns, i), append(l.widths, w)
	}
	if l.total() > width {
		l.gap = 1
	}
	for l.least(t) > width && l.drop(t) {
	}
	for l.total() > width && l.narrow(t) {
	}
	return l
}

// total is the width of all columns.
func (l *layout) total() int {
	sum := l.gap * max(len(l.widths)-1, 0)
	for _, w := range l.widths {
		sum += w
	}
	return sum
}

// least is the width of all columns when texts are cut as far as they may be.
func (l *layout) least(t *table) int {
	sum := l.gap * max(len(l.widths)-1, 0)
	for i, w := range l.widths {
		if least := t.columns[l.columns[i]].least; least > 0 {
			w = min(w, least)
		}
		sum += w
	}
	return sum
}

// drop leaves a column out. It reports whether there was one.
func (l *layout) drop(t *table) bool {
	at := 0
	for i, c := range l.columns {
		if t.columns[c].drop > t.columns[l.columns[at]].drop {
			at = i
		}
	}
	if len(l.columns) == 0 || t.columns[l.columns[at]].drop == 0 {
		return false
	}
	l.columns, l.widths = slices.Delete(l.columns, at, at+1), slices.Delete(l.widths, at, at+1)
	return true
}

// narrow takes a column away from the widest text that may be cut. It reports whether there was one.
func (l *layout) narrow(t *table) bool {
	at := -1
	for i, c := range l.columns {
		if least := t.columns[c].least; least > 0 && l.widths[i] > least && (at < 0 || l.widths[i] > l.widths[at]) {
			at = i
		}
	}
	if at >= 0 {
		l.widths[at]--
	}
	return at >= 0
}

// line draws a row, or the titles.
func (l *layout) line(t *table, cells []cell) (out Line) {
	for i, c := range l.columns {
		text, w := clip(clean(cells[c].text), l.widths[i]), l.widths[i]
		space := strings.Repeat(" ", max(w-columnsOf(text), 0))
		if t.columns[c].right {
			text = space + text
		} else {
			text += space
		}
		if i > 0 {
			out = append(out, piece{strings.Repeat(" ", l.gap), plain})
		}
		out = append(out, piece{text, cells[c].style})
	}
	return out
}

// titles draws the titles; that of the order's column is bold.
func (l *layout) titles(t *table) Line {
	cells := make([]cell, len(t.columns))
	for i, c := range t.columns {
		cells[i] = cell{text: c.title}
	}
	return l.line(t, cells)
}
