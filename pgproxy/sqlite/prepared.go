package sqlite

import (
	"strings"
	"unsafe"

	"github.com/headpond/headpond/pgwire"
)

// prepared is a parsed statement of a client and, once it has been described, its types. It holds
// no connection.
type prepared struct {
	src        string // as the client sent it
	rw         *rewritten
	tokens     []token // of rw.sql
	verb       string  // SELECT, INSERT, …; the one after WITH
	write      bool    // needs the writer
	command    *command
	params     []uint32
	names      []string // names of the result columns, see resultNames
	columns    []column
	described  bool
	generation uint64 // generation of the schema it was described with
}

// readVerbs are the statements that run on a reader.
var readVerbs = map[string]bool{"SELECT": true, "VALUES": true, "EXPLAIN": true, "PRAGMA": true}

// prepare parses one statement. params are the types that Parse declared.
func prepare(src string, params []uint32) (*prepared, error) {
	p := &prepared{src: src}
	tokens := tokenize(src)
	if len(tokens) == 0 {
		return p, nil
	}
	if tokens[0].is("DECLARE") {
		return prepareDeclare(src, tokens, params)
	}
	cmd, err := parseCommand(tokens)
	if err != nil || cmd != nil {
		p.command, p.described = cmd, true
		p.verb = strings.ToUpper(tokens[0].text)
		return p, err
	}
	if err := checkText([]byte(src)); err != nil {
		return nil, err
	}
	if p.command, err = parseCopy(src, tokens); err != nil || p.command != nil {
		p.described, p.verb = true, "COPY"
		return p, err
	}
	if p.command, err = parseSchemaCommand(src, tokens); err != nil || p.command != nil {
		p.described, p.verb = true, strings.ToUpper(tokens[0].text)
		return p, err
	}
	if err := refuse(tokens); err != nil {
		return nil, err
	}
	if p.rw, err = rewrite(src, params...); err != nil {
		return nil, err
	}
	p.tokens = tokenize(p.rw.sql)
	p.names = resultNames(tokens)
	if cmd := emptyCatalog(p.tokens, tokens); p.rw.catalog && cmd != nil {
		p.command, p.described, p.verb = cmd, true, "SELECT"
		p.params = make([]uint32, max(p.rw.params, len(params)))
		for i := range p.params {
			p.params[i] = oidText
		}
		copy(p.params, params)
		return p, nil
	}
	p.verb = strings.ToUpper(p.tokens[mainVerb(p.tokens)].text)
	p.write = !readVerbs[p.verb]
	p.params = make([]uint32, max(p.rw.params, len(params)))
	for i, oid := range params {
		if oid != oidUnknown {
			p.params[i] = oid
		}
	}
	return p, nil
}

// empty reports whether the statement consists of blanks and comments.
func (p *prepared) empty() bool { return p.rw == nil && p.command == nil }

// cost is the approximate memory of the statement, in bytes.
func (p *prepared) cost() int {
	n := len(p.src) + len(p.tokens)*int(unsafe.Sizeof(token{})) + len(p.names)*int(unsafe.Sizeof(""))
	if p.rw != nil {
		n += len(p.rw.sql) + len(p.rw.marks)*int(unsafe.Sizeof(mark{}))
	}
	if p.command != nil && p.command.declare != nil {
		n += p.command.declare.query.cost()
	}
	return n
}

// fields describes the result in the requested formats. It returns none for a statement without
// rows.
func (p *prepared) fields() []pgwire.Field {
	if p.command != nil {
		return p.command.fields
	}
	fields := make([]pgwire.Field, len(p.columns))
	for i := range p.columns {
		fields[i] = p.columns[i].Field
	}
	return fields
}

// width is the number of fields.
func (p *prepared) width() int {
	if p.command != nil {
		return len(p.command.fields)
	}
	return len(p.columns)
}

// tag returns the command tag for n rows.
func (p *prepared) tag(n int) string {
	switch p.verb {
	case "SELECT", "VALUES", "PRAGMA", "EXPLAIN":
		return "SELECT " + itoa(n)
	case "INSERT", "REPLACE":
		return "INSERT 0 " + itoa(n)
	case "UPDATE", "DELETE":
		return p.verb + " " + itoa(n)
	}
	if len(p.tokens) < 2 {
		return p.verb
	}
	second := strings.ToUpper(p.tokens[1].text)
	if second == "UNIQUE" {
		second = "INDEX"
	}
	switch p.verb {
	case "CREATE", "DROP", "ALTER":
		return p.verb + " " + second
	}
	return p.verb
}

// changesRows reports whether the tag counts changed rows.
func (p *prepared) changesRows() bool {
	switch p.verb {
	case "INSERT", "REPLACE", "UPDATE", "DELETE":
		return true
	}
	return false
}

// changesSchema reports whether the statement may change the types of columns.
func (p *prepared) changesSchema() bool {
	switch p.verb {
	case "CREATE", "DROP", "ALTER", "VACUUM":
		return true
	}
	return false
}

// readPragmas are the PRAGMAs that only report. The value tells whether the PRAGMA may have an
// argument.
var readPragmas = map[string]bool{
	"table_info": true, "table_xinfo": true, "table_list": true, "index_list": true, "index_info": true, "index_xinfo": true,
	"foreign_key_list": true, "foreign_key_check": true, "integrity_check": true, "quick_check": true,
	"database_list": false, "collation_list": false, "function_list": false, "module_list": false, "pragma_list": false,
	"compile_options": false, "user_version": false, "application_id": false, "page_count": false, "page_size": false,
	"freelist_count": false, "encoding": false, "journal_mode": false, "schema_version": false, "data_version": false,
	"synchronous": false, "foreign_keys": false, "busy_timeout": false, "cache_size": false,
}

// refuse returns an error for statements that PostgreSQL or SQLite supports but a shared SQLite
// file does not.
func refuse(tokens []token) error {
	second, third := token{kind: kindOp}, token{kind: kindOp}
	if len(tokens) > 1 {
		second = tokens[1]
	}
	if len(tokens) > 2 {
		third = tokens[2]
	}
	if second.is("OR") && len(tokens) > 3 { // skip OR REPLACE
		second = tokens[3]
	}
	switch first := tokens[0]; {
	case first.isAny("LISTEN", "NOTIFY", "UNLISTEN", "GRANT", "REVOKE", "COMMENT", "DO", "CALL",
		"PREPARE", "EXECUTE", "CLUSTER", "REFRESH", "SECURITY", "IMPORT", "REASSIGN", "CHECKPOINT", "LOAD", "ATTACH", "DETACH", "MERGE"):
		return unsupported("%s", strings.ToUpper(first.text)).at("", 0)
	case first.isAny("CREATE", "ALTER", "DROP") && second.isAny("EXTENSION", "FUNCTION", "PROCEDURE", "ROLE", "USER", "DATABASE",
		"TYPE", "DOMAIN", "SEQUENCE", "MATERIALIZED", "POLICY", "RULE", "SERVER", "FOREIGN", "AGGREGATE", "LANGUAGE", "PUBLICATION", "SUBSCRIPTION", "TABLESPACE"):
		return unsupported("%s %s", strings.ToUpper(first.text), strings.ToUpper(second.text))
	case first.is("CREATE") && second.isAny("TEMP", "TEMPORARY"):
		return unsupported("CREATE TEMPORARY").hint("Connections to the file are shared, so a temporary object would be seen by other sessions.")
	case first.is("VACUUM") && (second.is("INTO") || third.is("INTO")):
		return unsupported("VACUUM INTO")
	case first.is("PRAGMA"):
		return refusePragma(tokens)
	}
	return nil
}

func refusePragma(tokens []token) error {
	i := 1
	if len(tokens) > 3 && tokens[2].is(".") {
		i = 3
	}
	if i >= len(tokens) {
		return nil
	}
	args, ok := readPragmas[strings.ToLower(tokens[i].name())]
	if !ok || !args && i+1 < len(tokens) {
		return unsupported("this PRAGMA").hint("PRAGMAs that change a connection or the file are set by the gateway; those that report are allowed.")
	}
	return nil
}
