package sqlite

import (
	"strconv"
	"strings"

	"zombiezen.com/go/sqlite"
)

// Declared types for the catalogs. They are more exact than the types in which columns are sent, so that tools which
// read them can recreate the table.

// catalogTypes are the types that differ in the catalogs and not in results.
var catalogTypes = map[string]uint32{"VARCHAR": oidVarchar, "NVARCHAR": oidVarchar, "CHAR": oidBpchar, "NCHAR": oidBpchar, "BPCHAR": oidBpchar, "CHARACTER": oidBpchar}

// declaredType returns the type of a declaration such as VARCHAR(20).
func declaredType(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	decl := strings.ToUpper(strings.TrimSpace(args[0].Text()))
	oid := declaredOID(decl)
	switch word := decl[:wordLen(decl)]; {
	case strings.HasSuffix(decl, "[]"):
		oid = castOID(strings.ToLower(decl))
	case strings.HasPrefix(decl, "CHARACTER VARYING"):
		oid = oidVarchar
	case catalogTypes[word] != 0:
		oid = catalogTypes[word]
	case oid == oidUnspecified:
		oid = oidText
	}
	return sqlite.IntegerValue(int64(oid)), nil
}

// declaredModifier returns atttypmod: the length plus 4 for VARCHAR(20), precision and scale for NUMERIC(10,2), -1 for
// others.
func declaredModifier(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	return sqlite.IntegerValue(int64(modifierOf(args[0].Text()))), nil
}

func modifierOf(decl string) int32 {
	_, inside, found := strings.Cut(strings.TrimSuffix(strings.TrimSpace(decl), ")"), "(")
	first, second, two := strings.Cut(inside, ",")
	n, err := strconv.ParseInt(strings.TrimSpace(first), 10, 16)
	if !found || err != nil || n < 0 {
		return -1
	}
	v, err := declaredType(nil, []sqlite.Value{text(decl)})
	switch uint32(v.Int64()) {
	case oidVarchar, oidBpchar:
		if err == nil && !two {
			return int32(n) + 4
		}
	case oidNumeric:
		scale := int64(0)
		if two {
			if scale, err = strconv.ParseInt(strings.TrimSpace(second), 10, 11); err != nil || scale < 0 {
				return -1
			}
		}
		return int32(n)<<16 | int32(scale) + 4
	}
	return -1
}

// textOf returns the parsed CREATE TABLE of a table, nil if it has none.
func (cs *connState) textOf(table string) *tableText {
	sql, err := lookup("SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE")(cs, []sqlite.Value{text(table)})
	if err != nil {
		return nil
	}
	t, _ := parseTable(sql.Text()) // nil if it returns an error
	return t
}

// foreignKey finds the foreign key of a table by its columns.
func (cs *connState) foreignKey(args []sqlite.Value) *tableConstraint {
	for _, d := range cs.constraints(args[0].Text()) {
		if (d.kind == "FOREIGN" || d.kind == "REFERENCES") && strings.EqualFold(strings.Join(d.columns, ", "), args[1].Text()) {
			return &d
		}
	}
	return nil
}

// foreignKeyName implements pg_key_name(table, columns).
func foreignKeyName(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	if d := cs.foreignKey(args); d != nil {
		return text(d.name), nil
	}
	d := tableConstraint{kind: "FOREIGN", columns: strings.Split(args[1].Text(), ", ")}
	return text(d.defaultName(args[0].Text())), nil
}

// foreignKeyDeferrable implements pg_key_deferrable(table, columns).
func foreignKeyDeferrable(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	d := cs.foreignKey(args)
	return yes(d != nil && strings.Contains(strings.ToUpper(d.text), "INITIALLY DEFERRED")), nil
}

// checksOf returns the CHECK constraints of a table as an array of names and definitions.
func checksOf(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	list := [][]string{}
	for _, c := range cs.constraints(args[0].Text()) {
		if c.kind == "CHECK" {
			list = append(list, []string{c.name, "CHECK ((" + c.expression() + "))"})
		}
	}
	return marshal(list)
}
