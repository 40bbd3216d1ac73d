package sqlite

import (
	"context"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// command is a statement that the session answers without SQLite.
type command struct {
	fields []pgwire.Field // empty if the command returns no rows
	// run returns the command tag and the rows.
	run func(ctx context.Context, s *session) (tag string, rows [][]string, err error)
	// endsFailed is set for statements that are accepted in a failed transaction.
	endsFailed bool
	// declare and fetch replace run in statements that open and read cursors.
	declare *declaration
	fetch   *fetch
}

// parseCommand recognises session commands, transactions and settings. It returns nil for
// statements that SQLite runs.
func parseCommand(tokens []token) (*command, error) {
	arg := func(i int) token {
		if i < len(tokens) && !tokens[i].is(";") {
			return tokens[i]
		}
		return token{kind: kindOp}
	}
	switch t := tokens[0]; {
	case t.is("BEGIN"), t.is("START") && arg(1).is("TRANSACTION"):
		return parseBegin(tokens), nil
	case t.isAny("COMMIT", "END") && !arg(1).is("PREPARED"):
		return ending(tokens, (*session).commit), nil
	case t.isAny("ROLLBACK", "ABORT") && !arg(1).is("PREPARED"):
		return parseRollback(tokens), nil
	case t.is("SAVEPOINT") && arg(1).text != "":
		return savepoint("SAVEPOINT", arg(1).name()), nil
	case t.is("RELEASE"):
		return savepoint("RELEASE", tokens[len(tokens)-1].name()), nil
	case t.is("SET"):
		return parseSet(tokens)
	case t.is("SHOW"):
		return parseShow(tokens)
	case t.is("RESET"):
		return simple("RESET", func(s *session) error { return s.reset(arg(1).name()) }), nil
	case t.is("DISCARD"):
		return simple("DISCARD "+strings.ToUpper(arg(1).text), func(s *session) error { return s.discard(arg(1).is("ALL")) }), nil
	case t.is("DEALLOCATE"):
		return parseDeallocate(tokens[len(tokens)-1]), nil
	case t.is("CREATE") && arg(1).is("SCHEMA"): // does nothing: schemas are prefixes of table names, see ownSchema
		return simple("CREATE SCHEMA", func(*session) error { return nil }), nil
	case t.is("DROP") && arg(1).is("SCHEMA"):
		return nil, unsupported("DROP SCHEMA").hint("A schema is a part of its tables' names: drop the tables.")
	case t.isAny("FETCH", "MOVE"):
		return parseFetch(tokens)
	case t.is("CLOSE"):
		return parseClose(tokens)
	case t.is("UNLISTEN"):
		return simple("UNLISTEN", func(*session) error { return nil }), nil
	case t.is("LOCK"):
		return simple("LOCK TABLE", func(*session) error { return unsupported("LOCK").hint("Begin with BEGIN IMMEDIATE.") }), nil
	}
	return nil, nil
}

func simple(tag string, fn func(s *session) error) *command {
	return &command{run: func(_ context.Context, s *session) (string, [][]string, error) { return tag, nil, fn(s) }}
}

// parseBegin reads BEGIN with PostgreSQL's or SQLite's modes.
func parseBegin(tokens []token) *command {
	m := parseModes(tokens)
	tag := "BEGIN"
	if tokens[0].is("START") {
		tag = "START TRANSACTION"
	}
	return &command{run: func(ctx context.Context, s *session) (string, [][]string, error) { return tag, nil, s.begin(ctx, m) }}
}

// ending makes a command that ends a transaction block. With AND CHAIN it begins another with the
// same modes.
func ending(tokens []token, end func(*session) (tag string, err error)) *command {
	last := len(tokens) - 1
	chain := last > 1 && tokens[last].is("CHAIN") && tokens[last-1].is("AND")
	return &command{endsFailed: true, run: func(ctx context.Context, s *session) (string, [][]string, error) {
		if chain && !s.block {
			return "", nil, sqlError(pgwire.StateNoActiveTransaction, "AND CHAIN can only be used in transaction blocks")
		}
		asked := s.asked
		tag, err := end(s)
		if err == nil && chain {
			err = s.begin(ctx, asked)
		}
		return tag, nil, err
	}}
}

func parseRollback(tokens []token) *command {
	for i, t := range tokens {
		if t.is("TO") {
			c := savepoint("ROLLBACK TO", tokens[len(tokens)-1].name())
			c.endsFailed = i > 0
			return c
		}
	}
	return ending(tokens, (*session).rollbackBlock)
}

func savepoint(what, name string) *command {
	return &command{run: func(ctx context.Context, s *session) (string, [][]string, error) {
		tag := map[string]string{"ROLLBACK TO": "ROLLBACK"}[what]
		if tag == "" {
			tag = what
		}
		return tag, nil, s.savepoint(ctx, what, name)
	}}
}

// parseSet reads SET [SESSION|LOCAL] name {=|TO} value, SET TIME ZONE and SET TRANSACTION.
func parseSet(tokens []token) (*command, error) {
	i, local := 1, false
	if len(tokens) > 2 && tokens[1].isAny("SESSION", "LOCAL") && !tokens[2].isAny("=", "TO") {
		i, local = 2, tokens[1].is("LOCAL")
	}
	if len(tokens) < i+2 {
		return nil, sqlError(pgwire.StateSyntaxError, "syntax error in SET: want SET name = value")
	}
	set := func(name, value string) (*command, error) {
		return simple("SET", func(s *session) error { return s.assign(name, value, local) }), nil
	}
	switch {
	case tokens[i].is("TRANSACTION"):
		m := parseModes(tokens[i:])
		return simple("SET", func(s *session) error { return s.setTransaction(m) }), nil
	case tokens[i].is("CHARACTERISTICS"):
		m := parseModes(tokens[i:])
		return simple("SET", func(s *session) error { return s.setCharacteristics(m) }), nil
	case tokens[i].is("AUTHORIZATION") && tokens[i+1].is("DEFAULT"): // poolers send it
		return simple("SET", func(*session) error { return nil }), nil
	case tokens[i].is("AUTHORIZATION"):
		return nil, unsupported("SET SESSION AUTHORIZATION")
	case tokens[i].is("TIME"):
		return set("TimeZone", settingText(tokens[i+2:]))
	case tokens[i].isAny("NAMES"):
		return set("client_encoding", settingText(tokens[i+1:]))
	}
	name := tokens[i].name()
	for len(tokens) > i+2 && tokens[i+1].is(".") {
		name, i = name+"."+tokens[i+2].name(), i+2
	}
	if len(tokens) < i+3 || !tokens[i+1].isAny("=", "TO") {
		return nil, sqlError(pgwire.StateSyntaxError, "syntax error in SET: want SET %s = value", name)
	}
	if tokens[i+2].is("DEFAULT") {
		return simple("SET", func(s *session) error { return s.reset(name) }), nil
	}
	return set(name, settingText(tokens[i+2:]))
}

// settingText joins the values of a SET in the format of SHOW.
func settingText(tokens []token) string {
	var parts []string
	for _, t := range tokens {
		switch {
		case t.is(","):
		case t.kind == kindString:
			parts = append(parts, stringValue(t.text))
		case len(parts) > 0 && parts[len(parts)-1] == "-":
			parts[len(parts)-1] = "-" + t.text
		default:
			parts = append(parts, t.name())
		}
	}
	return strings.Join(parts, ", ")
}

func parseShow(tokens []token) (*command, error) {
	if len(tokens) < 2 {
		return nil, sqlError(pgwire.StateSyntaxError, "syntax error in SHOW: want SHOW name")
	}
	name := ""
	for _, t := range tokens[1:] {
		if !t.is(";") {
			name += t.name()
		}
	}
	switch strings.ToLower(name) {
	case "all":
		fields := []pgwire.Field{field("name", oidText), field("setting", oidText), field("description", oidText)}
		return &command{fields: fields, run: func(_ context.Context, s *session) (string, [][]string, error) {
			return "SHOW", s.showAll(), nil
		}}, nil
	case "timezone":
		name = "TimeZone"
	case "transactionisolationlevel":
		name = "transaction_isolation"
	}
	return &command{fields: []pgwire.Field{field(name, oidText)}, run: func(_ context.Context, s *session) (string, [][]string, error) {
		v, err := s.show(name)
		return "SHOW", [][]string{{v}}, err
	}}, nil
}

func (s *session) reset(name string) error {
	initial := s.initial
	if strings.EqualFold(name, "all") {
		for key, v := range initial {
			if s.settings[key] != v && !fixed[key] {
				if err := s.set(key, v); err != nil {
					return err
				}
			}
		}
		return nil
	}
	v, ok := initial[strings.ToLower(name)]
	if !ok {
		s.changing(strings.ToLower(name), false)
		delete(s.settings, strings.ToLower(name))
		return nil
	}
	if fixed[strings.ToLower(name)] {
		return nil
	}
	return s.set(name, v)
}

func (s *session) discard(all bool) error {
	if !all {
		return nil
	}
	if s.block {
		return sqlError(pgwire.StateActiveTransaction, "DISCARD ALL cannot run inside a transaction block")
	}
	s.closePortals(true)
	clear(s.statements)
	return s.reset("all")
}

func parseDeallocate(t token) *command {
	if t.is("ALL") {
		return simple("DEALLOCATE ALL", func(s *session) error {
			clear(s.statements)
			return nil
		})
	}
	name := t.name()
	if t.kind == kindIdent {
		name = strings.ToLower(name)
	}
	return simple("DEALLOCATE", func(s *session) error {
		if _, ok := s.statements[name]; !ok {
			return sqlError(pgwire.StateInvalidStatementName, "prepared statement %q does not exist", name)
		}
		delete(s.statements, name)
		return nil
	})
}

// nothing runs a query that returns no rows.
func nothing(context.Context, *session) (string, [][]string, error) { return "SELECT 0", nil, nil }
