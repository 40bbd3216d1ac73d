package sqlite

import (
	"slices"
	"sort"
	"strings"
)

// scopes resolves column names in a statement: which SELECT contains a token, which tables, subqueries and common table
// expressions that SELECT reads, and which columns those have.
type scopes struct {
	frames []frame
	arms   []arm       // in the order of their first tokens
	opened map[int]int // opening parenthesis → its frame
}

// frame is the statement, or the content of a pair of parentheses.
type frame struct {
	outer  int // the enclosing frame, -1 for the statement
	within int // the enclosing arm, -1 if there is none
	arms   []int
	tables []commonTable // tables of its WITH
	open   int           // opening parenthesis
	state  frameState
	fields []schemaField
	known  bool
}

// frameState tells whether the fields of a frame are known. A recursive table reaches its own frame while that is being
// resolved.
type frameState byte

const (
	frameNew frameState = iota
	frameBusy
	frameDone
)

// commonTable is a table of WITH.
type commonTable struct {
	name    string
	columns []string
	open    int // opening parenthesis of its query
}

// arm is one SELECT, or one VALUES with all its rows. UNION, EXCEPT and INTERSECT join the arms of a frame.
type arm struct {
	lo, hi, frame int
	read          bool
	merged        bool // USING or NATURAL merges columns
	relations     []relation
}

// relation is one item of FROM. fields are valid only if known is set.
type relation struct {
	name   string
	fields []schemaField
	known  bool
}

// maxArms bounds the SELECTs and rows that are read to determine the type of a column.
const maxArms = 100

// newScopes finds the frames and arms of a statement.
func newScopes(tokens []token) *scopes {
	s := &scopes{frames: []frame{{outer: -1, within: -1, open: -1}}, opened: map[int]int{}}
	stack, current := []int{0}, []int{-1} // the open frames, and the current arm of each
	end := func(i int) {
		if a := current[len(current)-1]; a >= 0 {
			s.arms[a].hi = i
		}
	}
	for i, t := range tokens {
		top := len(stack) - 1
		switch {
		case t.is("("):
			f := frame{outer: stack[top], within: current[top], open: i}
			if f.within < 0 { // inherit the arm around the enclosing parentheses
				f.within = s.frames[stack[top]].within
			}
			s.opened[i] = len(s.frames)
			stack, current = append(stack, len(s.frames)), append(current, -1)
			s.frames = append(s.frames, f)
		case t.is(")") && top > 0:
			end(i)
			stack, current = stack[:top], current[:top]
		case t.isAny("UNION", "EXCEPT", "INTERSECT", "RETURNING"):
			end(i)
			current[top] = -1
		case t.isAny("SELECT", "VALUES") && current[top] < 0:
			current[top] = len(s.arms)
			s.frames[stack[top]].arms = append(s.frames[stack[top]].arms, len(s.arms))
			s.arms = append(s.arms, arm{lo: i, hi: len(tokens), frame: stack[top]})
		case t.is("WITH") && current[top] < 0:
			s.frames[stack[top]].tables = append(s.frames[stack[top]].tables, commonTables(tokens, i+1)...)
		}
	}
	return s
}

// commonTables reads name [(columns)] AS [[NOT] MATERIALIZED] (query), … from token i on.
func commonTables(tokens []token, i int) []commonTable {
	var list []commonTable
	if i < len(tokens) && tokens[i].is("RECURSIVE") {
		i++
	}
	for {
		alias, columns, last := aliasAt(tokens, i)
		if alias < 0 {
			return list
		}
		for last++; last < len(tokens) && tokens[last].isAny("AS", "NOT", "MATERIALIZED"); last++ {
		}
		end := closing(tokens, last)
		if end == len(tokens) {
			return list
		}
		list = append(list, commonTable{tokens[alias].name(), columns, last})
		if end+1 >= len(tokens) || !tokens[end+1].is(",") {
			return list
		}
		i = end + 2
	}
}

// armAt returns the innermost arm that contains token i, -1 if there is none.
func (s *scopes) armAt(i int) int {
	a := sort.Search(len(s.arms), func(k int) bool { return s.arms[k].lo > i }) - 1
	for a >= 0 && i >= s.arms[a].hi {
		if a = s.frames[s.arms[a].frame].within; a < 0 {
			return -1
		}
	}
	return a
}

// scope returns the scopes of the statement. The first call makes them.
func (ty *typer) scope() *scopes {
	if ty.scopes == nil {
		ty.scopes = newScopes(ty.tokens)
	}
	return ty.scopes
}

// column returns the type of the column at token i, from the relations of its SELECT and the enclosing ones.
func (ty *typer) column(i int) uint32 {
	name, of := strings.ToLower(ty.tokens[i].name()), ""
	if ty.at(i - 1).is(".") {
		of = ty.at(i - 2).name()
	}
	s := ty.scope()
	for a := s.armAt(i); a >= 0; a = s.frames[s.arms[a].frame].within {
		found, oid := false, uint32(oidUnspecified)
		for _, r := range ty.relations(a) {
			if of != "" && !strings.EqualFold(r.name, of) {
				continue
			}
			for _, f := range r.fields {
				switch {
				case f.name != name:
				case found && f.oid != oid:
					return oidUnspecified
				default:
					found, oid = true, f.oid
				}
			}
		}
		if found {
			return oid
		}
	}
	if ty.anyTable == nil {
		return oidUnspecified
	}
	return ty.anyTable(name)
}

// relations returns the relations that an arm reads.
func (ty *typer) relations(a int) []relation {
	s := ty.scope()
	if s.arms[a].read {
		return s.arms[a].relations
	}
	s.arms[a].read = true
	lo, hi := s.arms[a].lo, s.arms[a].hi
	i := endOfList(ty.tokens[:hi], lo+1)
	if i >= hi || !ty.tokens[i].is("FROM") {
		return nil
	}
	var list []relation
	for i++; i < hi; {
		r, last := ty.relationAt(i, s.arms[a].frame)
		if last < i { // enter the parenthesis of a join
			i++
			continue
		}
		list = append(list, r)
		for i = last + 1; i < hi && !ty.tokens[i].isAny(",", "JOIN"); i++ {
			switch t := ty.tokens[i]; {
			case t.is("("):
				i = closing(ty.tokens, i)
			case t.isAny("USING", "NATURAL"):
				s.arms[a].merged = true
			case t.isAny("WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT"):
				hi = i
			}
		}
		i++
	}
	s.arms[a].relations = list
	return list
}

// relationAt reads the item of FROM at token i. It returns its last token, or i-1 for a parenthesis that contains a
// join.
func (ty *typer) relationAt(i, within int) (r relation, last int) {
	t := ty.tokens[i]
	switch {
	case t.is("(") && !ty.at(i+1).isAny("SELECT", "VALUES", "WITH"):
		return r, i - 1
	case t.is("("):
		last = closing(ty.tokens, i)
		r.fields, r.known = ty.frameFields(ty.scope().opened[i])
	default:
		last = i
		for ty.at(last + 1).is(".") {
			last += 2
		}
		r.name = ty.at(last).name()
		r.fields, r.known = ty.named(r.name, within, last == i)
		if ty.at(last + 1).is("(") {
			last = closing(ty.tokens, last+1)
		}
	}
	if alias, _, end := aliasAt(ty.tokens, last+1); alias >= 0 {
		r.name, last = ty.tokens[alias].name(), end
	}
	return r, last
}

// named returns the columns of a table: of WITH, searched from the frame within outwards if plain is set, or of the
// file.
func (ty *typer) named(name string, within int, plain bool) ([]schemaField, bool) {
	s := ty.scope()
	for f := within; f >= 0 && plain; f = s.frames[f].outer {
		for _, c := range s.frames[f].tables {
			if !strings.EqualFold(c.name, name) {
				continue
			}
			fields, known := ty.frameFields(s.opened[c.open])
			if !known || len(c.columns) == 0 || len(c.columns) != len(fields) {
				return fields, known
			}
			fields = slices.Clone(fields)
			for i, column := range c.columns {
				fields[i].name = strings.ToLower(column)
			}
			return fields, true
		}
	}
	if ty.table == nil {
		return nil, false
	}
	fields := ty.table(name)
	return fields, len(fields) > 0
}

// frameFields returns the columns of the query in a frame; known is false if they cannot be determined. A recursive
// query has the columns of its first arm, as in PostgreSQL.
func (ty *typer) frameFields(f int) (fields []schemaField, known bool) {
	fr := &ty.scope().frames[f]
	if fr.state != frameNew {
		return fr.fields, fr.known
	}
	fr.state = frameBusy
	for k, a := range fr.arms[:min(len(fr.arms), maxArms)] {
		list, ok := ty.armFields(a)
		if !ok || k > 0 && len(list) != len(fr.fields) {
			fr.known = false
			break
		}
		if k == 0 {
			fr.fields, fr.known = list, true
			continue
		}
		for i := range list {
			fr.fields[i].oid = common(fr.fields[i].oid, list[i].oid)
		}
	}
	fr.state = frameDone
	return fr.fields, fr.known
}

// armFields returns the result columns of an arm.
func (ty *typer) armFields(a int) (list []schemaField, known bool) {
	lo, hi := ty.scope().arms[a].lo, ty.scope().arms[a].hi
	if ty.tokens[lo].is("VALUES") {
		return ty.rowFields(lo+1, hi), true
	}
	if lo++; ty.at(lo).isAny("DISTINCT", "ALL") {
		lo++
	}
	end := endOfList(ty.tokens[:hi], lo)
	for _, it := range splitItems(ty.tokens, lo, end) {
		if it.star {
			fields, ok := ty.starFields(a, it)
			if !ok {
				return nil, false
			}
			list = append(list, fields...)
			continue
		}
		name := ty.tokens[it.hi-1]
		if it.hi < end && ty.tokens[it.hi].is("AS") {
			name = ty.at(it.hi + 1)
		} else if it.hi < end && !ty.tokens[it.hi].is(",") {
			name = ty.tokens[it.hi]
		}
		list = append(list, schemaField{strings.ToLower(name.name()), ty.sub(it.lo, it.hi)})
	}
	return list, true
}

// starFields returns the columns that * or t.* stands for.
func (ty *typer) starFields(a int, it item) (list []schemaField, known bool) {
	of := ""
	if it.hi-it.lo > 1 {
		of = ty.tokens[it.hi-3].name()
	}
	relations := ty.relations(a)
	if of == "" && ty.scope().arms[a].merged {
		return nil, false
	}
	for _, r := range relations {
		if of != "" && !strings.EqualFold(r.name, of) {
			continue
		}
		if !r.known {
			return nil, false
		}
		list = append(list, r.fields...)
	}
	return list, true
}

// rowFields returns the columns of VALUES, whose rows begin at token i.
func (ty *typer) rowFields(i, hi int) (list []schemaField) {
	for rows := 0; i < hi && ty.tokens[i].is("(") && rows < maxArms; rows++ {
		end := closing(ty.tokens, i)
		for k, it := range splitItems(ty.tokens, i+1, min(end, hi)) {
			oid := ty.sub(it.lo, it.hi)
			if k == len(list) {
				list = append(list, schemaField{"column" + itoa(k+1), oid})
			} else {
				list[k].oid = common(list[k].oid, oid)
			}
		}
		if i = end + 1; ty.at(i).is(",") {
			i++
		}
	}
	return list
}

// result returns the type of result column i of n. it is its select item, if any.
func (ty *typer) result(verb string, i, n int, it *item) uint32 {
	if verb == "SELECT" || verb == "VALUES" {
		if fields, known := ty.frameFields(0); known && len(fields) == n {
			return fields[i].oid
		}
	}
	if it == nil || it.star {
		return oidUnspecified
	}
	return ty.sub(it.lo, it.hi)
}
