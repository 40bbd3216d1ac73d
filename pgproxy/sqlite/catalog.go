package sqlite

import (
	"fmt"
	"strings"

	"zombiezen.com/go/sqlite"
)

// The catalogs are temporary views over sqlite_schema and the pragma functions, so they are always
// up to date. The rewriter drops "pg_catalog." and turns "information_schema.x" into
// information_schema_x. A relation's OID is 16384 plus its rowid in sqlite_schema. A primary key
// that is the rowid has no index in SQLite; its OID is that of its table plus 1000000000, and its
// sqlite_name is NULL. relhastriggers is true for every table, because psql shows foreign keys only
// then.
var catalogViews = []struct{ name, query string }{
	{"pg_namespace", `SELECT 2200 AS oid, 'public' AS nspname, 10 AS nspowner, NULL AS nspacl
		UNION ALL SELECT 11, 'pg_catalog', 10, NULL UNION ALL SELECT 13000, 'information_schema', 10, NULL`},
	{"pg_am", `SELECT 2 AS oid, 'heap' AS amname, 't' AS amtype UNION ALL SELECT 403, 'btree', 'i'`},
	{"pg_roles", `SELECT 10 AS oid, current_user() AS rolname, 0 AS rolsuper, 1 AS rolinherit, 0 AS rolcreaterole, 0 AS rolcreatedb,
		1 AS rolcanlogin, 0 AS rolreplication, -1 AS rolconnlimit, NULL AS rolpassword, NULL AS rolvaliduntil, 0 AS rolbypassrls, NULL AS rolconfig`},
	{"pg_user", `SELECT current_user() AS usename, 10 AS usesysid, 0 AS usecreatedb, 0 AS usesuper`},
	{"pg_database", `SELECT 5 AS oid, current_database() AS datname, 10 AS datdba, 6 AS encoding, 'c' AS datlocprovider, 0 AS datistemplate,
		1 AS datallowconn, -1 AS datconnlimit, 1663 AS dattablespace, 'C' AS datcollate, 'C' AS datctype, NULL AS daticulocale, NULL AS datacl`},
	{"pg_tablespace", `SELECT 1663 AS oid, 'pg_default' AS spcname, 10 AS spcowner, NULL AS spcacl, NULL AS spcoptions`},
	{"pg_settings", `SELECT name, current_setting(name) AS setting, NULL AS unit, '' AS category, '' AS short_desc, 'user' AS context, 'string' AS vartype
		FROM (SELECT 'server_version' AS name UNION ALL SELECT 'server_version_num' UNION ALL SELECT 'max_index_keys' UNION ALL SELECT 'max_identifier_length'
		UNION ALL SELECT 'standard_conforming_strings' UNION ALL SELECT 'search_path' UNION ALL SELECT 'TimeZone')`},
	{"pg_class", `SELECT CAST(16384 + s.rowid AS INTEGER) AS oid, CASE s.type WHEN 'index' THEN pg_index_name(s.tbl_name, s.name) ELSE s.name END AS relname, 2200 AS relnamespace, 0 AS reltype, 0 AS reloftype, 10 AS relowner,
		CASE s.type WHEN 'index' THEN 403 WHEN 'table' THEN 2 ELSE 0 END AS relam, 0 AS relfilenode, 0 AS reltablespace, 0 AS relpages, -1.0 AS reltuples,
		0 AS reltoastrelid, EXISTS (SELECT 1 FROM main.sqlite_schema i WHERE i.type = 'index' AND i.tbl_name = s.name)
		OR EXISTS (SELECT 1 FROM pragma_table_xinfo(s.name) x WHERE s.type = 'table' AND x.pk = 1) AS relhasindex, 0 AS relisshared,
		'p' AS relpersistence, CASE s.type WHEN 'table' THEN 'r' WHEN 'view' THEN 'v' ELSE 'i' END AS relkind,
		(SELECT count(*) FROM pragma_table_xinfo(s.name)) AS relnatts, CASE s.type WHEN 'table' THEN json_array_length(pg_checks(s.name)) ELSE 0 END AS relchecks, 0 AS relhasrules,
		s.type = 'table' AS relhastriggers, 0 AS relhassubclass,
		0 AS relrowsecurity, 0 AS relforcerowsecurity, 1 AS relispopulated, 'd' AS relreplident, 0 AS relispartition, NULL AS relacl, NULL AS reloptions,
		NULL AS relpartbound, s.name AS sqlite_name FROM main.sqlite_schema s WHERE s.type IN ('table', 'view', 'index') AND (s.type = 'index' OR s.name NOT LIKE 'sqlite\_%' ESCAPE '\')
		UNION ALL SELECT CAST(1000016384 + s.rowid AS INTEGER), pg_index_name(s.name, ''), 2200, 0, 0, 10, 403, 0, 0, 0, -1.0, 0, 0, 0, 'p', 'i', 1, 0, 0, 0, 0,
		0, 0, 1, 'd', 0, NULL, NULL, NULL, NULL FROM main.sqlite_schema s WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite\_%' ESCAPE '\'
		AND EXISTS (SELECT 1 FROM pragma_table_xinfo(s.name) x WHERE x.pk = 1) AND NOT EXISTS (SELECT 1 FROM pragma_index_list(s.name) l WHERE l.origin = 'pk')`},
	{"pg_attribute", `SELECT c.oid AS attrelid, x.name AS attname, pg_declared(CASE WHEN c.relkind = 'v' AND x.type IN ('BLOB', 'NUM') THEN '' ELSE ` + keyDecl("c.relname") + ` END) AS atttypid, pg_modifier(x.type) AS atttypmod, -1 AS attlen,
		x.cid + 1 AS attnum, (x."notnull" OR x.pk > 0) AS attnotnull, x.dflt_value IS NOT NULL AS atthasdef, 0 AS attisdropped, CASE WHEN c.relkind = 'r' AND x.pk = 1 AND upper(x.type) = 'INTEGER' AND NOT EXISTS (SELECT 1 FROM pragma_index_list(c.relname) l WHERE l.origin = 'pk')
		THEN 'd' ELSE '' END AS attidentity,
		CASE x.hidden WHEN 2 THEN 's' WHEN 3 THEN 's' ELSE '' END AS attgenerated, 0 AS attcollation, 0 AS attndims, 1 AS attislocal, 0 AS attinhcount,
		'p' AS attstorage, '' AS attcompression, -1 AS attstattarget, NULL AS attacl, NULL AS attoptions, NULL AS attfdwoptions
		FROM pg_class c, pragma_table_xinfo(c.relname) x WHERE c.relkind IN ('r', 'v')
		UNION ALL SELECT c.oid, coalesce(x.name, 'expr'), 25, -1, -1, x.seqno + 1, 0, 0, 0, '', '', 0, 0, 1, 0, 'p', '', -1, NULL, NULL, NULL
		FROM pg_class c, pragma_index_info(c.sqlite_name) x WHERE c.relkind = 'i'
		UNION ALL SELECT c.oid, x.name, pg_declared(` + keyDecl("t.relname") + `), -1, -1, 1, 1, 0, 0, '', '', 0, 0, 1, 0, 'p', '', -1, NULL, NULL, NULL
		FROM pg_class c JOIN pg_class t ON t.oid = c.oid - 1000000000, pragma_table_xinfo(t.relname) x WHERE c.relkind = 'i' AND c.sqlite_name IS NULL AND x.pk = 1`},
	{"pg_attrdef", `SELECT c.oid + x.cid AS oid, c.oid AS adrelid, x.cid + 1 AS adnum, x.dflt_value AS adbin
		FROM pg_class c, pragma_table_xinfo(c.relname) x WHERE c.relkind = 'r' AND x.dflt_value IS NOT NULL`},
	{"pg_index", `SELECT i.oid AS indexrelid, t.oid AS indrelid, l."unique" AS indisunique, l.origin = 'pk' AS indisprimary, 0 AS indisclustered,
		1 AS indisvalid, 1 AS indisready, 1 AS indislive, 1 AS indimmediate, 0 AS indisreplident, 0 AS indisexclusion, 0 AS indnullsnotdistinct,
		(SELECT count(*) FROM pragma_index_info(l.name)) AS indnatts, (SELECT count(*) FROM pragma_index_info(l.name)) AS indnkeyatts,
		(SELECT group_concat(max(k.cid + 1, 0), ' ') FROM pragma_index_info(l.name) k) AS indkey,
		(SELECT '<expression>' FROM pragma_index_info(l.name) k WHERE k.cid < 0) AS indexprs,
		CASE WHEN l.partial THEN (SELECT substr(s.sql, instr(upper(s.sql), ' WHERE ') + 7) FROM main.sqlite_schema s WHERE s.name = l.name) END AS indpred,
		'CREATE ' || CASE WHEN l."unique" THEN 'UNIQUE ' ELSE '' END || 'INDEX ' || i.relname || ' ON ' || t.relname || ' USING btree (' ||
		(SELECT group_concat(coalesce(k.name, '<expression>'), ', ') FROM pragma_index_info(l.name) k) || ')' AS indexdef,
		(SELECT group_concat(CASE k."desc" WHEN 1 THEN 3 ELSE 0 END, ' ') FROM pragma_index_xinfo(l.name) k WHERE k.key) AS indoption,
		(SELECT group_concat(0, ' ') FROM pragma_index_info(l.name) k) AS indclass, (SELECT group_concat(0, ' ') FROM pragma_index_info(l.name) k) AS indcollation,
		l.origin <> 'c' OR EXISTS (SELECT 1 FROM main.sqlite_schema s WHERE s.type = 'index' AND s.name = l.name AND s.sql LIKE 'CREATE UNIQUE INDEX % /* constraint */ %') AS sqlite_constraint
		FROM pg_class t, pragma_index_list(t.relname) l JOIN pg_class i ON i.sqlite_name = l.name WHERE t.relkind = 'r'
		UNION ALL SELECT i.oid, t.oid, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, CAST(x.cid + 1 AS TEXT), NULL, NULL,
		'CREATE UNIQUE INDEX ' || i.relname || ' ON ' || t.relname || ' USING btree (' || x.name || ')', '0', '0', '0', 1
		FROM pg_class i JOIN pg_class t ON t.oid = i.oid - 1000000000, pragma_table_xinfo(t.relname) x WHERE i.relkind = 'i' AND i.sqlite_name IS NULL AND x.pk = 1`},
	{"pg_foreign_keys", `SELECT t.oid AS conrelid, t.relname AS tbl, f.id, f."table" AS parent, f.on_update, f.on_delete,
		group_concat(f."from", ', ') AS columns, group_concat(coalesce(f."to", p.name), ', ') AS parents,
		'[' || group_concat(x.cid + 1) || ']' AS conkey, '[' || group_concat(p.cid + 1) || ']' AS confkey, group_concat(p.cid + 1, ' ') AS parentkey
		FROM pg_class t, pragma_foreign_key_list(t.relname) f JOIN pragma_table_xinfo(t.relname) x ON x.name = f."from" COLLATE NOCASE
		LEFT JOIN pragma_table_xinfo(f."table") p ON CASE WHEN f."to" IS NULL THEN p.pk = f.seq + 1 ELSE p.name = f."to" COLLATE NOCASE END
		WHERE t.relkind = 'r' GROUP BY t.oid, f.id`},
	{"pg_constraint", `SELECT CAST(1500000000 + f.conrelid * 100 + f.id AS INTEGER) AS oid, pg_key_name(f.tbl, f.columns) AS conname, 2200 AS connamespace,
		'f' AS contype, pg_key_deferrable(f.tbl, f.columns) AS condeferrable, pg_key_deferrable(f.tbl, f.columns) AS condeferred, 1 AS convalidated, f.conrelid, 0 AS contypid,
		coalesce((SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indkey = f.parentkey LIMIT 1), 0) AS conindid, 0 AS conparentid,
		c.oid AS confrelid, f.conkey, f.confkey,
		'FOREIGN KEY (' || f.columns || ') REFERENCES ' || f.parent || coalesce('(' || f.parents || ')', '') ||
		CASE f.on_update WHEN 'NO ACTION' THEN '' ELSE ' ON UPDATE ' || f.on_update END ||
		CASE f.on_delete WHEN 'NO ACTION' THEN '' ELSE ' ON DELETE ' || f.on_delete END ||
		CASE WHEN pg_key_deferrable(f.tbl, f.columns) THEN ' DEFERRABLE INITIALLY DEFERRED' ELSE '' END AS condef,
		CASE f.on_update WHEN 'CASCADE' THEN 'c' WHEN 'SET NULL' THEN 'n' WHEN 'SET DEFAULT' THEN 'd' WHEN 'RESTRICT' THEN 'r' ELSE 'a' END AS confupdtype,
		CASE f.on_delete WHEN 'CASCADE' THEN 'c' WHEN 'SET NULL' THEN 'n' WHEN 'SET DEFAULT' THEN 'd' WHEN 'RESTRICT' THEN 'r' ELSE 'a' END AS confdeltype,
		's' AS confmatchtype, 1 AS conislocal, 0 AS coninhcount, 1 AS connoinherit, NULL AS conexclop, NULL AS conbin
		FROM pg_foreign_keys f LEFT JOIN pg_class c ON c.relname = f.parent COLLATE NOCASE AND c.relkind = 'r'
		UNION ALL SELECT i.indexrelid + 500000000, c.relname, 2200, CASE WHEN i.indisprimary THEN 'p' ELSE 'u' END, 0, 0, 1, i.indrelid, 0, i.indexrelid, 0,
		0, '[' || replace(i.indkey, ' ', ',') || ']', NULL, CASE WHEN i.indisprimary THEN 'PRIMARY KEY ' ELSE 'UNIQUE ' END || substr(i.indexdef, instr(i.indexdef, '(')),
		' ', ' ', ' ', 1, 0, 1, NULL, NULL
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.sqlite_constraint
		UNION ALL SELECT CAST(600000000 + t.oid * 100 + k.key AS INTEGER), k.value ->> 0, 2200, 'c', 0, 0, 1, t.oid, 0, 0, 0, 0, NULL, NULL, k.value ->> 1, ' ', ' ', ' ', 1, 0, 0, NULL, NULL
		FROM pg_class t, json_each(pg_checks(t.relname)) k WHERE t.relkind = 'r'`},
	{"pg_tables", `SELECT 'public' AS schemaname, relname AS tablename, current_user() AS tableowner, NULL AS tablespace, relhasindex AS hasindexes,
		0 AS hasrules, relhastriggers AS hastriggers, 0 AS rowsecurity FROM pg_class WHERE relkind = 'r'`},
	{"pg_views", `SELECT 'public' AS schemaname, name AS viewname, current_user() AS viewowner, pg_view_query(sql) AS definition FROM main.sqlite_schema WHERE type = 'view'`},
	{"pg_indexes", `SELECT 'public' AS schemaname, t.relname AS tablename, c.relname AS indexname, NULL AS tablespace, i.indexdef
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid`},
	{"information_schema_schemata", `SELECT current_database() AS catalog_name, nspname AS schema_name, current_user() AS schema_owner FROM pg_namespace`},
	{"information_schema_tables", `SELECT current_database() AS table_catalog, 'public' AS table_schema, relname AS table_name,
		CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'BASE TABLE' END AS table_type, CASE relkind WHEN 'v' THEN 'NO' ELSE 'YES' END AS is_insertable_into
		FROM pg_class WHERE relkind IN ('r', 'v')`},
	{"information_schema_views", `SELECT current_database() AS table_catalog, 'public' AS table_schema, name AS table_name, pg_view_query(sql) AS view_definition
		FROM main.sqlite_schema WHERE type = 'view'`},
	{"information_schema_columns", `SELECT current_database() AS table_catalog, 'public' AS table_schema, c.relname AS table_name, a.attname AS column_name,
		a.attnum AS ordinal_position, (SELECT d.adbin FROM pg_attrdef d WHERE d.adrelid = c.oid AND d.adnum = a.attnum) AS column_default,
		CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END AS is_nullable, format_type(a.atttypid, -1) AS data_type,
		CASE WHEN a.atttypid IN (1042, 1043) AND a.atttypmod > 4 THEN a.atttypmod - 4 END AS character_maximum_length, NULL AS character_octet_length,
		CASE a.atttypid WHEN 21 THEN 16 WHEN 23 THEN 32 WHEN 20 THEN 64 WHEN 701 THEN 53 WHEN 700 THEN 24 WHEN 1700 THEN CASE WHEN a.atttypmod > 4 THEN (a.atttypmod - 4) >> 16 END END AS numeric_precision,
		CASE WHEN a.atttypid IN (20, 21, 23, 700, 701) THEN 2 WHEN a.atttypid = 1700 THEN 10 END AS numeric_precision_radix,
		CASE WHEN a.atttypid IN (20, 21, 23) THEN 0 WHEN a.atttypid = 1700 AND a.atttypmod > 4 THEN (a.atttypmod - 4) & 65535 END AS numeric_scale,
		CASE WHEN a.atttypid IN (1083, 1114, 1184) THEN 6 WHEN a.atttypid = 1082 THEN 0 END AS datetime_precision, NULL AS interval_type,
		NULL AS collation_name, NULL AS domain_name, pg_typname(a.atttypid) AS udt_name, 'pg_catalog' AS udt_schema, current_database() AS udt_catalog,
		CASE a.attidentity WHEN '' THEN 'NO' ELSE 'YES' END AS is_identity, CASE a.attidentity WHEN '' THEN NULL ELSE 'BY DEFAULT' END AS identity_generation,
		CASE a.attgenerated WHEN '' THEN 'NEVER' ELSE 'ALWAYS' END AS is_generated, NULL AS generation_expression, CASE c.relkind WHEN 'r' THEN 'YES' ELSE 'NO' END AS is_updatable
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relkind IN ('r', 'v')`},
	{"information_schema_table_constraints", `SELECT current_database() AS constraint_catalog, 'public' AS constraint_schema, k.conname AS constraint_name,
		current_database() AS table_catalog, 'public' AS table_schema, c.relname AS table_name,
		CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' WHEN 'f' THEN 'FOREIGN KEY' ELSE 'CHECK' END AS constraint_type,
		CASE WHEN k.condeferrable THEN 'YES' ELSE 'NO' END AS is_deferrable, CASE WHEN k.condeferred THEN 'YES' ELSE 'NO' END AS initially_deferred, 'YES' AS enforced
		FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid`},
	{"information_schema_key_column_usage", `SELECT current_database() AS constraint_catalog, 'public' AS constraint_schema, k.conname AS constraint_name,
		current_database() AS table_catalog, 'public' AS table_schema, c.relname AS table_name, a.attname AS column_name, e.key + 1 AS ordinal_position,
		CASE k.contype WHEN 'f' THEN e.key + 1 END AS position_in_unique_constraint
		FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid, json_each(k.conkey) e JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = e.value
		WHERE k.contype IN ('p', 'u', 'f')`},
	{"information_schema_constraint_column_usage", `SELECT current_database() AS table_catalog, 'public' AS table_schema, c.relname AS table_name, a.attname AS column_name,
		current_database() AS constraint_catalog, 'public' AS constraint_schema, k.conname AS constraint_name
		FROM pg_constraint k JOIN pg_class c ON c.oid = CASE k.contype WHEN 'f' THEN k.confrelid ELSE k.conrelid END,
		json_each(CASE k.contype WHEN 'f' THEN k.confkey ELSE k.conkey END) e JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = e.value WHERE k.contype IN ('p', 'u', 'f')`},
	{"information_schema_referential_constraints", `SELECT current_database() AS constraint_catalog, 'public' AS constraint_schema, k.conname AS constraint_name,
		current_database() AS unique_constraint_catalog, 'public' AS unique_constraint_schema, i.relname AS unique_constraint_name, 'NONE' AS match_option,
		CASE k.confupdtype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT' WHEN 'r' THEN 'RESTRICT' ELSE 'NO ACTION' END AS update_rule,
		CASE k.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT' WHEN 'r' THEN 'RESTRICT' ELSE 'NO ACTION' END AS delete_rule
		FROM pg_constraint k LEFT JOIN pg_class i ON i.oid = k.conindid WHERE k.contype = 'f'`},
}

// createCatalog creates the views on a new connection.
func createCatalog(conn *sqlite.Conn) error {
	if err := createTypes(conn); err != nil {
		return err
	}
	if err := createEmpty(conn); err != nil {
		return err
	}
	for _, v := range catalogViews {
		if err := transient(conn, "CREATE TEMP VIEW "+v.name+" AS "+v.query); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return nil
}

// emptyViews are empty catalogs that queries of other catalogs join.
var emptyViews = map[string]string{
	"pg_statio_all_tables": "relid schemaname relname",
	"pg_enum":              "oid enumtypid enumsortorder enumlabel",
	"pg_opclass":           "oid opcname opcmethod opcnamespace opcdefault opcintype",
	"pg_proc":              "oid proname pronamespace proowner prokind proretset prorettype proargtypes proallargtypes proargmodes proargnames proargdefaults pronargs pronargdefaults prosrc prolang provolatile proacl",
	"pg_sequence":          "seqrelid seqtypid seqstart seqincrement seqmin seqmax seqcache seqcycle",
	"pg_collation":         "oid collname collnamespace collprovider collisdeterministic collencoding",
	"pg_description":       "objoid classoid objsubid description",
	"pg_inherits":          "inhrelid inhparent inhseqno inhdetachpending",
	"pg_extension":         "oid extname extversion extnamespace",
	"pg_auth_members":      "roleid member grantor admin_option",
	"pg_range":             "rngtypid rngsubtype rngmultitypid rngcollation rngsubopc rngcanonical rngsubdiff",
	"pg_language":          "oid lanname lanowner lanispl lanpltrusted",
	"pg_trigger":           "oid tgrelid tgname tgenabled tgisinternal tgparentid",
	"pg_matviews":          "schemaname matviewname",
	"pg_policy":            "oid polname polrelid polcmd polpermissive polroles polqual polwithcheck",
}

// createEmpty creates the empty views.
func createEmpty(conn *sqlite.Conn) error {
	for name, columns := range emptyViews {
		list := "NULL AS " + strings.ReplaceAll(columns, " ", ", NULL AS ")
		if err := transient(conn, "CREATE TEMP VIEW "+name+" AS SELECT "+list+" WHERE 0"); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// createTypes creates pg_type and the functions that give the other views the types of columns.
func createTypes(conn *sqlite.Conn) error {
	var rows []string
	row := func(oid uint32, name string, size int16, category, input string, element, array uint32) {
		rows = append(rows, fmt.Sprintf("SELECT %d AS oid, %s AS typname, 11 AS typnamespace, 10 AS typowner, %d AS typlen, 'b' AS typtype, '%s' AS typcategory,"+
			" 0 AS typispreferred, 0 AS typrelid, %d AS typelem, %d AS typarray, 0 AS typbasetype, -1 AS typtypmod, 0 AS typcollation, 0 AS typnotnull, ',' AS typdelim,"+
			" NULL AS typdefault, 1 AS typisdefined, '%s' AS typinput, 0 AS typndims, 0 AS typreceive, 0 AS typsubscript", oid, quoteString(name), size, category, element, array, input))
	}
	for _, t := range pgTypes {
		row(t.oid, t.typ, t.size, "U", t.typ+"in", 0, arrayTypes[t.oid])
		if array, ok := arrayTypes[t.oid]; ok {
			row(array, "_"+t.typ, -1, "A", "array_in", t.oid, 0)
		}
	}
	row(oidInt2Vector, "int2vector", -1, "A", "int2vectorin", oidInt2, 0)
	err := conn.CreateFunction("pg_typname", &sqlite.FunctionImpl{NArgs: 1, Scalar: func(_ sqlite.Context, args []sqlite.Value) (sqlite.Value, error) {
		for _, t := range pgTypes {
			if int64(t.oid) == args[0].Int64() {
				return text(t.typ), nil
			}
		}
		return text("text"), nil
	}})
	if err != nil {
		return err
	}
	return transient(conn, "CREATE TEMP VIEW pg_type AS "+strings.Join(rows, " UNION ALL "))
}

func transient(conn *sqlite.Conn, query string) error {
	stmt, _, err := conn.PrepareTransient(query)
	if err != nil {
		return err
	}
	_, err = stmt.Step()
	stmt.Finalize()
	return err
}

// catalogBools are the columns of the catalogs that clients take for bool.
var catalogBools = func() map[string]bool {
	m := map[string]bool{}
	for _, s := range strings.Fields(`relhasindex relisshared relhasrules relhastriggers relhassubclass relrowsecurity relforcerowsecurity
		relispopulated relispartition attnotnull atthasdef attisdropped attislocal indisunique indisprimary indisclustered indisvalid indisready
		indislive indimmediate indisreplident indisexclusion indnullsnotdistinct condeferrable condeferred convalidated rolsuper rolinherit
		rolcreaterole rolcreatedb rolcanlogin rolreplication rolbypassrls datistemplate datallowconn typnotnull typisdefined hasindexes
		hasrules hastriggers rowsecurity usecreatedb usesuper typispreferred conislocal connoinherit opcdefault seqcycle`) {
		m[s] = true
	}
	return m
}()

// emptyCatalogs are the catalogs that are always empty, because SQLite has no such objects.
var emptyCatalogs = func() map[string]bool {
	m := map[string]bool{}
	for _, s := range strings.Fields(`pg_policy pg_statistic_ext pg_publication pg_publication_rel pg_publication_namespace pg_trigger pg_inherits
		pg_extension pg_proc pg_description pg_shdescription pg_seclabel pg_collation pg_auth_members pg_enum pg_range pg_foreign_table
		pg_foreign_server pg_foreign_data_wrapper pg_subscription pg_language pg_operator pg_cast pg_conversion pg_depend
		pg_event_trigger pg_rewrite pg_sequence pg_partitioned_table pg_default_acl pg_db_role_setting pg_stat_activity pg_locks
		pg_prepared_xacts pg_cursors pg_matviews pg_sequences pg_aggregate pg_ts_config pg_ts_dict pg_ts_parser pg_ts_template
		information_schema_routines information_schema_triggers information_schema_sequences
`) {
		m[s] = true
	}
	return m
}()

// emptyCatalog answers a query of a catalog that is always empty, without running it: such queries
// use syntax that SQLite lacks. It returns nil for other queries. tokens are the rewritten form of
// source. A catalog that is only joined by LEFT JOIN does not make the result empty; it exists as
// an empty view.
func emptyCatalog(tokens, source []token) *command {
	if len(tokens) == 0 || !tokens[0].is("SELECT") {
		return nil
	}
	empty := false
	depth := 0
	for i := endOfList(tokens, 1); i < len(tokens) && !(depth == 0 && tokens[i].isAny("WHERE", "GROUP", "ORDER", "UNION")); i++ {
		switch t := tokens[i]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth == 0 && emptyCatalogs[strings.ToLower(t.text)] && tokens[i-1].isAny("FROM", ",", "JOIN") && !tokens[i-2].isAny("LEFT", "OUTER"):
			empty = true
		}
	}
	if !empty {
		return nil
	}
	return noRows(source)
}

// noRows makes a command that returns no rows, with the query's column names.
func noRows(tokens []token) *command {
	cmd := &command{run: nothing}
	for _, it := range selectItems(tokens) {
		cmd.fields = append(cmd.fields, field(itemName(tokens, it), oidText))
	}
	return cmd
}

// catalogColumnTypes are the types of the catalogs' columns that are not text. SQLite has no type for them, because
// they are expressions.
var catalogColumnTypes = func() map[string]uint32 {
	m := map[string]uint32{}
	for oid, names := range map[uint32]string{
		oidOID: `oid relnamespace reltype reloftype relowner relam relfilenode reltablespace reltoastrelid attrelid atttypid attcollation adrelid indexrelid indrelid
			connamespace conrelid contypid conindid conparentid confrelid typnamespace typowner typrelid typelem typarray typbasetype typcollation nspowner
			objoid classoid inhrelid inhparent pronamespace prorettype prolang datdba dattablespace seqrelid seqtypid enumtypid rngtypid rngsubtype rngmultitypid spcowner usesysid extnamespace`,
		oidInt2: `attnum attlen relnatts relchecks indnatts indnkeyatts adnum attndims typlen attinhcount pronargs`,
		oidInt4: `atttypmod typtypmod attstattarget typndims relpages encoding datconnlimit rolconnlimit objsubid inhseqno ordinal_position position_in_unique_constraint
			character_maximum_length character_octet_length numeric_precision numeric_precision_radix numeric_scale datetime_precision`,
		oidFloat4: `reltuples`,
		oidName:   `attname relname conname nspname typname datname amname rolname proname spcname collname usename`,
		oidInt8:   `seqstart seqincrement seqmin seqmax seqcache`,
		1005:      `conkey confkey`, oidInt2Vector: `indkey indoption`,
		oidChar: `relkind relpersistence relreplident typtype typcategory typdelim contype confupdtype confdeltype confmatchtype attidentity attgenerated attstorage
			attcompression amtype prokind provolatile datlocprovider tgenabled polcmd`,
	} {
		for _, name := range strings.Fields(names) {
			m[name] = oid
		}
	}
	for name := range catalogBools {
		m[name] = oidBool
	}
	return m
}()
