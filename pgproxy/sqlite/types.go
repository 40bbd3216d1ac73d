package sqlite

import (
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// OIDs of the PostgreSQL types this backend speaks (pg_type.dat).
const (
	oidUnspecified = 0
	oidBool        = 16
	oidBytea       = 17
	oidName        = 19
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidOID         = 26
	oidJSON        = 114
	oidFloat4      = 700
	oidFloat8      = 701
	oidUnknown     = 705
	oidBpchar      = 1042
	oidVarchar     = 1043
	oidDate        = 1082
	oidTime        = 1083
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidNumeric     = 1700
	oidUUID        = 2950
	oidJSONB       = 3802
)

// pgType is one line of the table of types.
type pgType struct {
	oid  uint32
	name string // as format_type spells it
	typ  string // typname
	size int16
}

var pgTypes = []pgType{
	{oidBool, "boolean", "bool", 1}, {oidBytea, "bytea", "bytea", -1}, {oidName, "name", "name", 64},
	{oidInt8, "bigint", "int8", 8}, {oidInt2, "smallint", "int2", 2}, {oidInt4, "integer", "int4", 4},
	{oidText, "text", "text", -1}, {oidOID, "oid", "oid", 4}, {oidJSON, "json", "json", -1},
	{oidFloat4, "real", "float4", 4}, {oidFloat8, "double precision", "float8", 8},
	{oidUnknown, "unknown", "unknown", -2}, {oidBpchar, "character", "bpchar", -1},
	{oidVarchar, "character varying", "varchar", -1}, {oidDate, "date", "date", 4},
	{oidTime, "time without time zone", "time", 8},
	{oidTimestamp, "timestamp without time zone", "timestamp", 8},
	{oidTimestamptz, "timestamp with time zone", "timestamptz", 8},
	{oidNumeric, "numeric", "numeric", -1}, {oidUUID, "uuid", "uuid", 16}, {oidJSONB, "jsonb", "jsonb", -1},
}

// typeName returns how PostgreSQL spells the type, "text" for an unknown one.
func typeName(oid uint32) string {
	for _, t := range pgTypes {
		if t.oid == oid {
			return t.name
		}
	}
	return "text"
}

func typeSize(oid uint32) int16 {
	for _, t := range pgTypes {
		if t.oid == oid {
			return t.size
		}
	}
	return -1
}

// declared maps the words a declared column type begins with.
var declared = map[string]uint32{
	"BOOL": oidBool, "BOOLEAN": oidBool,
	"INT": oidInt8, "INTEGER": oidInt8, "BIGINT": oidInt8, "SMALLINT": oidInt8, "TINYINT": oidInt8, "MEDIUMINT": oidInt8,
	"INT2": oidInt8, "INT4": oidInt8, "INT8": oidInt8, "SERIAL": oidInt8, "BIGSERIAL": oidInt8, "OID": oidInt8, "UNSIGNED": oidInt8,
	"REAL": oidFloat8, "FLOAT": oidFloat8, "DOUBLE": oidFloat8, "FLOAT4": oidFloat8, "FLOAT8": oidFloat8,
	"NUMERIC": oidNumeric, "DECIMAL": oidNumeric, "MONEY": oidNumeric, "NUM": oidNumeric,
	"TEXT": oidText, "VARCHAR": oidText, "CHARACTER": oidText, "CHAR": oidText, "NCHAR": oidText, "NVARCHAR": oidText,
	"CLOB": oidText, "STRING": oidText, "UUID": oidText, "NAME": oidText, "BPCHAR": oidText, "TIME": oidText, "INTERVAL": oidText,
	"BLOB": oidBytea, "BYTEA": oidBytea, "VARBINARY": oidBytea, "BINARY": oidBytea,
	"JSON": oidJSON, "JSONB": oidJSON, "DATE": oidDate, "DATETIME": oidTimestamp, "TIMESTAMPTZ": oidTimestamptz,
}

// declaredOID maps a declared column type ("VARCHAR(20)") to the type of the
// wire, oidUnspecified for none and for one that says nothing.
func declaredOID(decl string) uint32 {
	decl = strings.ToUpper(strings.TrimSpace(decl))
	word := decl[:wordLen(decl)]
	switch {
	case word == "TIMESTAMP" && strings.Contains(decl, "WITH TIME ZONE"):
		return oidTimestamptz
	case word == "TIMESTAMP":
		return oidTimestamp
	}
	if oid, ok := declared[word]; ok {
		return oid
	}
	// What is left is decided as SQLite decides affinity
	// (https://sqlite.org/datatype3.html, section 3.1).
	switch {
	case strings.Contains(word, "INT"):
		return oidInt8
	case strings.Contains(word, "CHAR"), strings.Contains(word, "CLOB"), strings.Contains(word, "TEXT"):
		return oidText
	case strings.Contains(word, "BLOB"):
		return oidBytea
	case strings.Contains(word, "REAL"), strings.Contains(word, "FLOA"), strings.Contains(word, "DOUB"):
		return oidFloat8
	}
	return oidUnspecified
}

// castOID maps the name in a cast, PostgreSQL's or SQLite's.
func castOID(name string) uint32 {
	switch name = strings.ToLower(name); name {
	case "regclass", "regtype", "regnamespace", "regrole", "regproc", "regprocedure":
		return oidText
	case "oid":
		return oidInt8
	}
	return declaredOID(name)
}

// castAffinity returns what SQLite is told to CAST to for a PostgreSQL type.
func castAffinity(name string) string {
	switch castOID(name) {
	case oidInt8:
		return "INTEGER"
	case oidFloat8:
		return "REAL"
	case oidNumeric:
		return "NUMERIC"
	case oidBytea:
		return "BLOB"
	}
	return "TEXT"
}

// field makes the description of a result column.
func field(name string, oid uint32) pgwire.Field {
	return pgwire.Field{Name: name, TypeOID: oid, TypeSize: typeSize(oid), TypeModifier: -1}
}
