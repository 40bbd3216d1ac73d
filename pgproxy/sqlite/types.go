package sqlite

import (
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// OIDs of the PostgreSQL types that this backend sends (pg_type.dat).
const (
	oidUnspecified = 0
	oidBool        = 16
	oidBytea       = 17
	oidChar        = 18 // "char": one byte, used in the catalogs
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

// pgType is a row of the table of types.
type pgType struct {
	oid  uint32
	name string // name in the result of format_type
	typ  string // typname
	size int16
}

var pgTypes = []pgType{
	{oidBool, "boolean", "bool", 1}, {oidBytea, "bytea", "bytea", -1}, {oidChar, `"char"`, "char", 1}, {oidName, "name", "name", 64},
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

// typeName returns PostgreSQL's name of the type, "text" for an unknown one.
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

// declared maps the first word of a declared column type. All floats are SQLite's, with 8 bytes.
var declared = map[string]uint32{
	"BOOL": oidBool, "BOOLEAN": oidBool,
	"SMALLINT": oidInt2, "INT2": oidInt2, "TINYINT": oidInt2, "SMALLSERIAL": oidInt2, "SERIAL2": oidInt2,
	"INT": oidInt4, "INTEGER": oidInt4, "INT4": oidInt4, "MEDIUMINT": oidInt4, "SERIAL": oidInt4, "SERIAL4": oidInt4,
	"BIGINT": oidInt8, "INT8": oidInt8, "BIGSERIAL": oidInt8, "SERIAL8": oidInt8, "UNSIGNED": oidInt8, "OID": oidInt8,
	"REAL": oidFloat8, "FLOAT": oidFloat8, "DOUBLE": oidFloat8, "FLOAT4": oidFloat8, "FLOAT8": oidFloat8,
	"NUMERIC": oidNumeric, "DECIMAL": oidNumeric, "MONEY": oidNumeric, "NUM": oidNumeric, "DEC": oidNumeric,
	"TEXT": oidText, "VARCHAR": oidVarchar, "CHARACTER": oidBpchar, "CHAR": oidBpchar, "NCHAR": oidBpchar, "NVARCHAR": oidVarchar,
	"CLOB": oidText, "STRING": oidText, "NAME": oidText, "BPCHAR": oidBpchar, "INTERVAL": oidText, "TIMETZ": oidText,
	"BLOB": oidBytea, "BYTEA": oidBytea, "VARBINARY": oidBytea, "BINARY": oidBytea,
	"JSON": oidJSON, "JSONB": oidJSONB, "UUID": oidUUID,
	"DATE": oidDate, "TIME": oidTime, "DATETIME": oidTimestamp, "TIMESTAMP": oidTimestamp, "TIMESTAMPTZ": oidTimestamptz,
}

// declaredOID maps a declared column type ("VARCHAR(20)") to the type that is sent. It returns
// oidUnspecified for an empty or ambiguous declaration.
func declaredOID(decl string) uint32 {
	decl = strings.ToUpper(strings.TrimSpace(decl))
	word := decl[:wordLen(decl)]
	has := func(part string) bool { return strings.Contains(decl, part) }
	switch oid := declared[word]; {
	case oid == oidTimestamp && has("WITH TIME ZONE"):
		return oidTimestamptz
	case oid == oidTime && has("WITH TIME ZONE"):
		return oidText
	case oid == oidBpchar && has("VARYING"):
		return oidVarchar
	case isInt(oid) && has("UNSIGNED"):
		return oidInt8
	case oid != oidUnspecified:
		return oid
	}
	// All other types follow SQLite's rules for affinity (https://sqlite.org/datatype3.html,
	// section 3.1).
	switch {
	case has("INT"):
		return oidInt8
	case has("CHAR"), has("CLOB"), has("TEXT"):
		return oidText
	case has("BLOB"):
		return oidBytea
	case has("REAL"), has("FLOA"), has("DOUB"):
		return oidFloat8
	}
	return oidUnspecified
}

// castOID maps the type name in a cast, PostgreSQL's or SQLite's.
func castOID(name string) uint32 {
	if element, ok := strings.CutSuffix(name, "[]"); ok {
		return arrayOf(castOID(element))
	}
	switch name = strings.ToLower(name); name {
	case "regclass", "regtype", "regnamespace", "regrole", "regproc", "regprocedure":
		return oidText
	case "oid":
		return oidOID
	}
	return declaredOID(name)
}

// castAffinity returns the type for SQLite's CAST that corresponds to a PostgreSQL type.
func castAffinity(name string) string {
	switch oid := castOID(name); {
	case isInt(oid), oid == oidOID:
		return "INTEGER"
	case oid == oidFloat8:
		return "REAL"
	case oid == oidNumeric:
		return "NUMERIC"
	case oid == oidBytea:
		return "BLOB"
	}
	return "TEXT"
}

// castFunctions maps the SQL functions that cast to their result types.
var castFunctions = func() map[string]uint32 {
	m := map[string]uint32{}
	for _, t := range pgTypes {
		if t.oid != oidUnknown {
			m["pg_"+t.typ] = t.oid
		}
	}
	return m
}()

// castFunction returns the SQL function that casts to a type, "" for an unknown type.
func castFunction(oid uint32) string {
	for _, t := range pgTypes {
		if t.oid == oid {
			return "pg_" + t.typ
		}
	}
	return ""
}

// isInt reports whether SQLite's operators treat the type as an integer. bool is one.
func isInt(oid uint32) bool {
	return oid == oidInt8 || oid == oidInt4 || oid == oidInt2 || oid == oidBool
}

// numberRank orders the numeric types: the result of an operation has the higher of its operands'
// types.
var numberRank = map[uint32]int{oidBool: 1, oidInt2: 2, oidOID: 3, oidInt4: 3, oidInt8: 4, oidNumeric: 5, oidFloat4: 6, oidFloat8: 6}

// timeRank orders the types of times in the same way.
var timeRank = map[uint32]int{oidDate: 1, oidTimestamp: 2, oidTimestamptz: 3}

// common returns the type for values of both types, for example of the branches of CASE or UNION.
// Where PostgreSQL reports an error it is text, as which any value can be sent.
func common(a, b uint32) uint32 {
	switch {
	case a == b || b == oidUnspecified:
		return a
	case a == oidUnspecified:
		return b
	}
	for _, rank := range []map[uint32]int{numberRank, timeRank} {
		if rank[a] > 0 && rank[b] > 0 {
			if rank[a] < rank[b] {
				return b
			}
			return a
		}
	}
	return oidText
}

// field returns the description of a result column.
func field(name string, oid uint32) pgwire.Field {
	return pgwire.Field{Name: name, TypeOID: oid, TypeSize: typeSize(oid), TypeModifier: -1}
}
