package sqlite

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"zombiezen.com/go/sqlite"
)

// stateInvalidRegexp is invalid_regular_expression.
const stateInvalidRegexp = "2201B"

// fn is a SQL function: the numbers of arguments it accepts and its implementation.
type fn struct {
	args []int
	call func(cs *connState, args []sqlite.Value) (sqlite.Value, error)
}

func text(s string) sqlite.Value { return sqlite.TextValue(s) }

func yes(b bool) sqlite.Value {
	if b {
		return sqlite.IntegerValue(1)
	}
	return sqlite.IntegerValue(0)
}

// constant makes a function that ignores its arguments.
func constant(v sqlite.Value, args ...int) fn {
	return fn{args, func(*connState, []sqlite.Value) (sqlite.Value, error) { return v, nil }}
}

// ofSession makes a function without arguments that depends on the calling session.
func ofSession(f func(s *session) sqlite.Value) fn {
	return fn{[]int{0}, func(cs *connState, _ []sqlite.Value) (sqlite.Value, error) {
		if cs.session == nil {
			return sqlite.Value{}, nil
		}
		return f(cs.session), nil
	}}
}

// registerFunctions registers the functions of PostgreSQL that clients and catalog queries call.
func (b *Backend) registerFunctions(cs *connState) error {
	casts := map[string]fn{}
	for name, oid := range castFunctions {
		casts[name] = castTo(oid)
	}
	for _, set := range []map[string]fn{b.sessionFunctions(), catalogFunctions(), valueFunctions(), timeFunctions(), arrayFunctions(), wordFunctions(), syntaxFunctions(), casts} {
		for name, f := range set {
			for _, n := range f.args {
				impl := &sqlite.FunctionImpl{NArgs: n, Scalar: func(_ sqlite.Context, args []sqlite.Value) (sqlite.Value, error) {
					v, err := f.call(cs, args)
					if err != nil && cs.callError == nil {
						cs.callError = err
					}
					return v, nil
				}}
				if err := cs.conn.CreateFunction(name, impl); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	if err := registerRows(cs.conn); err != nil {
		return fmt.Errorf("pg_rows: %w", err)
	}
	return registerAggregates(cs)
}

// sessionFunctions are functions about the session, the server and the clock.
func (b *Backend) sessionFunctions() map[string]fn {
	user := ofSession(func(s *session) sqlite.Value { return text(s.c.User) })
	database := ofSession(func(s *session) sqlite.Value { return text(s.c.Database) })
	schema := constant(text("public"), 0)
	return map[string]fn{
		"current_user": user, "session_user": user, "current_role": user,
		"current_database": database, "current_catalog": database,
		"current_schema": schema, "current_schemas": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			if args[0].Int64() != 0 {
				return text("{pg_catalog,public}"), nil
			}
			return text("{public}"), nil
		}},
		"pg_postmaster_start_time": constant(text(formatTime(b.started.UTC(), oidTimestamptz)), 0),
		"version":                  constant(text("PostgreSQL "+serverVersion+" compatible: Headpond on SQLite "+sqlite.Version), 0),
		"pg_backend_pid":           ofSession(func(s *session) sqlite.Value { return sqlite.IntegerValue(keyOf(s.c.Key())) }),
		"pg_is_in_recovery":        constant(yes(false), 0),
		"inet_server_addr":         constant(sqlite.Value{}, 0), "inet_server_port": constant(sqlite.Value{}, 0),
		"txid_current": constant(sqlite.IntegerValue(1), 0),
		"current_setting": {[]int{1, 2}, func(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
			if cs.session == nil {
				return sqlite.Value{}, nil
			}
			v, err := cs.session.show(args[0].Text())
			if err != nil && len(args) == 2 && args[1].Int64() != 0 {
				return sqlite.Value{}, nil
			}
			return text(v), err
		}},
		"set_config": {[]int{3}, func(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
			if cs.session == nil {
				return sqlite.Value{}, nil
			}
			local, _ := parseBool(args[2].Text())
			return text(args[1].Text()), cs.session.assign(args[0].Text(), args[1].Text(), local)
		}},
		"pg_database_size": {[]int{1}, func(*connState, []sqlite.Value) (sqlite.Value, error) {
			info, err := os.Stat(b.cfg.Path)
			if err != nil {
				return sqlite.Value{}, err
			}
			return sqlite.IntegerValue(info.Size()), nil
		}},
	}
}

// valueFunctions are functions on values: pattern matching, and those that the rewriter calls.
func valueFunctions() map[string]fn {
	return map[string]fn{
		"regexp": {[]int{2}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			if isNull(args[0]) || isNull(args[1]) {
				return sqlite.Value{}, nil
			}
			re, err := compilePattern(args[0].Text())
			if err != nil {
				return sqlite.Value{}, err
			}
			return yes(re.MatchString(args[1].Text())), nil
		}},
		"quote_ident": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			if name := args[0].Text(); !plainName.MatchString(name) || reserved[strings.ToUpper(name)] {
				return text(quoteIdent(name)), nil
			}
			return args[0], nil
		}},
		"quote_literal": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			return text(quoteString(args[0].Text())), nil
		}},
		"pg_size_pretty": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			return text(pretty(args[0].Int64())), nil
		}},
	}
}

// compilePattern compiles a regular expression in a statement.
func compilePattern(pattern string) (*regexp.Regexp, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, sqlError(stateInvalidRegexp, "invalid regular expression: %v", err)
	}
	return re, nil
}

// castTo makes the function for a cast to a type.
func castTo(oid uint32) fn {
	return fn{[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
		v, err := coerce(oid, fromSQL(args[0]))
		if err != nil {
			return sqlite.Value{}, err
		}
		return v.sql(), nil
	}}
}

// plainName matches identifiers that need no quotes.
var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func isNull(v sqlite.Value) bool { return v.Type() == sqlite.TypeNull }

// pretty formats a size like pg_size_pretty.
func pretty(n int64) string {
	units := []string{"bytes", "kB", "MB", "GB", "TB"}
	i := 0
	for n >= 10*1024 && i < len(units)-1 {
		n, i = (n+512)/1024, i+1
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

// catalogFunctions are the functions that psql and GUI tools call on the catalogs.
func catalogFunctions() map[string]fn {
	truth, null := yes(true), sqlite.Value{}
	return map[string]fn{
		"pg_get_userbyid":     ofOwner(),
		"pg_table_is_visible": constant(truth, 1), "pg_function_is_visible": constant(truth, 1), "pg_type_is_visible": constant(truth, 1),
		"pg_collation_is_visible": constant(truth, 1), "pg_opclass_is_visible": constant(truth, 1), "pg_operator_is_visible": constant(truth, 1),
		"pg_encoding_to_char": constant(text("UTF8"), 1),
		"format_type":         {[]int{2}, formatType},
		"pg_get_expr":         {[]int{2, 3}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) { return args[0], nil }},
		"obj_description":     constant(null, 1, 2), "shobj_description": constant(null, 2), "col_description": constant(null, 2),
		"has_table_privilege": constant(truth, 2, 3), "has_schema_privilege": constant(truth, 2, 3), "has_database_privilege": constant(truth, 2, 3),
		"has_column_privilege": constant(truth, 3, 4), "has_any_column_privilege": constant(truth, 2, 3), "pg_has_role": constant(truth, 2, 3),
		"pg_table_size": constant(null, 1), "pg_relation_size": constant(null, 1, 2), "pg_total_relation_size": constant(null, 1), "pg_indexes_size": constant(null, 1),
		"pg_partition_ancestors": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			return sqlite.IntegerValue(args[0].Int64()), nil
		}},
		"pg_relation_is_publishable": constant(yes(false), 1), "pg_relation_is_updatable": constant(sqlite.IntegerValue(0), 2),
		"pg_get_function_result": constant(null, 1), "pg_get_function_arguments": constant(null, 1), "pg_get_partkeydef": constant(null, 1),
		"pg_get_statisticsobjdef_columns": constant(null, 1), "pg_get_serial_sequence": constant(null, 2), "pg_get_triggerdef": constant(null, 1, 2),
		"pg_regclass": {[]int{1}, regclass}, "to_regclass": {[]int{1}, regclass},
		"pg_regtype": {[]int{1}, regtype}, "to_regtype": {[]int{1}, regtype},
		"pg_regnamespace": constant(text("public"), 1), "pg_regproc": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			return text(strings.TrimPrefix(args[0].Text(), "pg_catalog.")), nil
		}},
		"pg_declared": {[]int{1}, declaredType}, "pg_modifier": {[]int{1}, declaredModifier},
		"pg_key_name": {[]int{2}, foreignKeyName}, "pg_key_deferrable": {[]int{2}, foreignKeyDeferrable}, "pg_checks": {[]int{1}, checksOf},
		"pg_regrole":     ofOwner(),
		"pg_index_name":  {[]int{2}, indexName},
		"pg_get_viewdef": {[]int{1, 2}, lookup("SELECT pg_view_query(sql) FROM main.sqlite_schema WHERE type = 'view' AND rowid = ?1 - 16384")},
		"pg_view_query": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			sql := args[0].Text()
			tokens := viewQuery(tokenize(sql))
			if len(tokens) == 0 {
				return sqlite.Value{}, nil
			}
			return text(sql[tokens[0].start:]), nil
		}},
		"pg_get_indexdef":      {[]int{1, 3}, indexDef},
		"pg_get_constraintdef": {[]int{1, 2}, lookup("SELECT condef FROM pg_constraint WHERE oid = ?1")},
	}
}

func ofOwner() fn {
	return fn{[]int{1}, func(cs *connState, _ []sqlite.Value) (sqlite.Value, error) {
		if cs.session == nil {
			return sqlite.Value{}, nil
		}
		return text(cs.session.c.User), nil
	}}
}

// lookup makes a function that runs a query on the same connection.
func lookup(query string) func(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	return func(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
		stmt, _, err := cs.conn.PrepareTransient(query)
		if err != nil {
			return sqlite.Value{}, err
		}
		defer stmt.Finalize()
		if args[0].Type() == sqlite.TypeText && strings.Trim(args[0].Text(), "0123456789") != "" {
			stmt.BindText(1, args[0].Text())
		} else {
			stmt.BindInt64(1, args[0].Int64())
		}
		for i := 2; i <= stmt.BindParamCount(); i++ {
			stmt.BindText(i, args[i-1].Text())
		}
		row, err := stmt.Step()
		if err != nil || !row || stmt.ColumnIsNull(0) {
			return sqlite.Value{}, err
		}
		if stmt.ColumnType(0) == sqlite.TypeInteger {
			return sqlite.IntegerValue(stmt.ColumnInt64(0)), nil
		}
		return text(stmt.ColumnText(0)), nil
	}
}

// regclass converts the OID of a relation to its name, or a name to the OID.
func regclass(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	if args[0].Type() == sqlite.TypeText && strings.Trim(args[0].Text(), "0123456789") != "" {
		name := args[0].Text()[strings.LastIndexByte(args[0].Text(), '.')+1:]
		return lookup("SELECT oid FROM pg_class WHERE relname = ?1 COLLATE NOCASE")(cs, []sqlite.Value{text(strings.Trim(name, `"`))})
	}
	if args[0].Type() == sqlite.TypeText {
		return sqlite.IntegerValue(args[0].Int64()), nil
	}
	return lookup("SELECT relname FROM pg_class WHERE oid = ?1")(cs, args)
}

// indexDef returns the definition of an index, or with a column number the name of that column.
func indexDef(cs *connState, args []sqlite.Value) (sqlite.Value, error) {
	if len(args) == 3 && args[1].Int64() > 0 {
		return lookup(fmt.Sprintf("SELECT attname FROM pg_attribute WHERE attrelid = ?1 AND attnum = %d", args[1].Int64()))(cs, args)
	}
	return lookup("SELECT indexdef FROM pg_index WHERE indexrelid = ?1")(cs, args)
}

// regtype converts the OID of a type to its name, or a name to the OID; NULL if it does not exist.
func regtype(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	if args[0].Type() == sqlite.TypeInteger {
		return text(typeName(uint32(args[0].Int64()))), nil
	}
	name, array := strings.CutSuffix(strings.ToLower(strings.TrimPrefix(args[0].Text(), "pg_catalog.")), "[]")
	for _, t := range pgTypes {
		if t.name == name || t.typ == name && t.oid != oidChar { // the name char means character
			if array {
				return sqlite.IntegerValue(int64(arrayTypes[t.oid])), nil
			}
			return sqlite.IntegerValue(int64(t.oid)), nil
		}
	}
	return sqlite.Value{}, nil
}

// formatType implements format_type(oid, modifier).
func formatType(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	oid, array := uint32(args[0].Int64()), ""
	if element, ok := elementTypes[oid]; ok {
		oid, array = element, "[]"
	}
	name, mod := typeName(oid), args[1].Int64()
	switch {
	case isNull(args[0]):
		return sqlite.Value{}, nil
	case mod < 4 || isNull(args[1]):
	case oid == oidNumeric:
		name += fmt.Sprintf("(%d,%d)", (mod-4)>>16, (mod-4)&0xffff)
	case oid == oidVarchar || oid == oidBpchar:
		name += fmt.Sprintf("(%d)", mod-4)
	}
	return text(name + array), nil
}
