package pgproxy

import "strings"

// catalogSQL returns the queries for all rows of a catalog.
func catalogSQL() string {
	return readingSQL(cachesSQL + settingNamesSQL + objectsSQL + suspectedTrees())
}

// evidentCatalogSQL is catalogSQL for CatalogsEvident, and calleesSQL returns the queries for the rows of callees.
func evidentCatalogSQL() string {
	return readingSQL(objectsSQL + treesOf(evidentSQL) + suspectTreesSQL)
}
func calleesSQL() string { return readingSQL(settingNamesSQL + objectsSQL + suspectedTrees()) }

const objectsSQL = functionsSQL + namesSQL + usesSQL

// suspectedTrees returns the query for objects without a text whose trees may leave state.
func suspectedTrees() string {
	harmless := strings.Join(strings.Fields(harmlessFunctions+" nextval setval"), ",")
	return treesOf(strings.Replace(suspectsSQL, "{harmless}", harmless, 1)) + suspectTreesSQL
}

// probeSQL returns the queries that find out whether anything evidently leaves state in sessions: functions whose source
// may, and a row of kind "e" if an object without a text does.
func probeSQL() string {
	return readingSQL(strings.TrimSuffix(strings.TrimSpace(functionsSQL), ";") + suspiciousSourceSQL + treesOf(evidentSQL) + evidentTreeSQL)
}

// treesOf returns treesSQL for the suspects that a query finds.
func treesOf(suspects string) string { return strings.Replace(treesSQL, "{suspects}", suspects, 1) }

// readingSQL returns a transaction of queries. Each row has five columns; the first is
// the kind of the row. Uses come after the objects that are used. All queries have one snapshot. They
// wait for no lock, whatever settings clients made in the session; these settings and the role are
// restored at the end, and temporary tables cannot take the place of a catalog. Texts come in the
// server's encoding, unconverted.
func readingSQL(queries string) string {
	return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY NOT DEFERRABLE;" +
		"RESET SESSION AUTHORIZATION;RESET ALL;SET LOCAL statement_timeout = '2s';SET LOCAL search_path = pg_catalog, pg_temp;" +
		"SET LOCAL client_encoding = 'SQL_ASCII';SET LOCAL standard_conforming_strings = on;" +
		plansSQL + queries +
		"ROLLBACK"
}

// plansSQL turns off timeouts that would end the transaction, and plans that take a thousand times as
// long if the server does not know the size of its catalogs yet. Older servers do not have all of
// these settings.
const plansSQL = `
SELECT 's', name, set_config(name, CASE WHEN name LIKE '%timeout' THEN '0' ELSE 'off' END, true), NULL, NULL FROM pg_settings
WHERE name IN ('enable_nestloop', 'jit', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout');
`

// settingNamesSQL asks for the names of the settings for a digest: those that clients can change, without those of a
// transaction, and those that servers of all versions report and that differ from client to client.
const settingNamesSQL = `
SELECT 'd', '', string_agg(name, ',' ORDER BY name), NULL, NULL FROM pg_settings WHERE context IN ('user', 'superuser') AND name ~ '^[A-Za-z_.]+$'
  AND name <> ALL ('{transaction_isolation,transaction_read_only,transaction_deferrable,application_name,client_encoding,DateStyle,IntervalStyle,TimeZone}'::text[]);
`

// functionsSQL asks for all functions that are not PostgreSQL's own: key, name, language,
// volatility and xmin of the row, and the source unless that is long. 16384 is FirstNormalObjectId. The functions of
// information_schema are included. The numbers are OIDs of types: internal and handlers, since no
// statement calls a function with these; and void, since such a function is called for its effects,
// whatever its volatility.
const functionsSQL = `
SELECT 'f', 'p' || p.oid, p.proname,
  CASE WHEN EXISTS (SELECT FROM pg_aggregate AS a WHERE a.aggfnoid = p.oid) THEN 'aggregate'
    WHEN p.prorettype IN (2281, 269, 325, 2280, 3115, 3310) OR 2281 = ANY (p.proargtypes) THEN 'internals'
    WHEN l.lanname = 'sql' AND p.prosrc = '' THEN 'atomic' ELSE l.lanname::text END || ' ' ||
  CASE WHEN p.prorettype = 2278 THEN 'v' ELSE p.provolatile::text END || ' ' || p.xmin::text,
  CASE WHEN l.lanname IN ('sql', 'plpgsql', 'c') AND octet_length(p.prosrc) <= 262144 THEN p.prosrc END
FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.oid >= 16384 OR p.pronamespace <> 'pg_catalog'::regnamespace;
`

// namesSQL asks for relations and types: key, name, and the kind of relations.
const namesSQL = `
SELECT 'n', 'c' || oid, relname, relkind::text, NULL FROM pg_class WHERE oid >= 16384 AND relkind IN ('r', 'p', 'v', 'm', 'f', 'c')
UNION ALL SELECT 'n', 'y' || oid, typname, NULL, NULL FROM pg_type WHERE oid >= 16384 AND typtype IN ('b', 'd', 'r', 'm', 'c');
`

// usesSQL asks for the keys of users and used objects. Views, tables with their defaults, rules,
// triggers, policies, checks and indexes, types, and functions depend on the functions that they call.
// A table also uses the tables that inherit from it or refer to it: a statement may affect them as
// well.
const usesSQL = `
WITH parts (classid, objid, owner) AS (
  SELECT 'pg_rewrite'::regclass, oid, 'c' || ev_class FROM pg_rewrite WHERE ev_class >= 16384
  UNION ALL SELECT 'pg_attrdef'::regclass, oid, 'c' || adrelid FROM pg_attrdef
  UNION ALL SELECT 'pg_policy'::regclass, oid, 'c' || polrelid FROM pg_policy
  UNION ALL SELECT 'pg_trigger'::regclass, oid, 'c' || tgrelid FROM pg_trigger
  UNION ALL SELECT 'pg_constraint'::regclass, oid, CASE WHEN conrelid <> 0 THEN 'c' || conrelid ELSE 'y' || contypid END FROM pg_constraint
  UNION ALL SELECT 'pg_class'::regclass, indexrelid, 'c' || indrelid FROM pg_index WHERE indrelid >= 16384
  UNION ALL SELECT 'pg_class'::regclass, oid, 'c' || oid FROM pg_class WHERE oid >= 16384 AND relkind IN ('r', 'p', 'v', 'm', 'f', 'c')
  UNION ALL SELECT 'pg_statistic_ext'::regclass, oid, 'c' || stxrelid FROM pg_statistic_ext
  UNION ALL SELECT 'pg_type'::regclass, oid, 'y' || oid FROM pg_type WHERE oid >= 16384
  UNION ALL SELECT 'pg_proc'::regclass, oid, 'p' || oid FROM pg_proc WHERE oid >= 16384 OR pronamespace <> 'pg_catalog'::regnamespace
), uses (owner, used) AS (
  SELECT owner, CASE d.refclassid WHEN 'pg_proc'::regclass THEN 'p' WHEN 'pg_class'::regclass THEN 'c' ELSE 'y' END || d.refobjid
  FROM pg_depend AS d JOIN parts USING (classid, objid)
  WHERE d.refobjid >= 16384 AND d.refclassid IN ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_type'::regclass)
  UNION ALL SELECT 'c' || inhparent, 'c' || inhrelid FROM pg_inherits
  UNION ALL SELECT 'c' || inhrelid, 'c' || inhparent FROM pg_inherits JOIN pg_partitioned_table ON partrelid = inhparent WHERE partexprs IS NOT NULL
  UNION ALL SELECT 'c' || confrelid, 'c' || conrelid FROM pg_constraint WHERE contype = 'f'
  UNION ALL SELECT 'y' || oid, 'c' || typrelid FROM pg_type WHERE oid >= 16384 AND typrelid <> 0
  UNION ALL SELECT '!', 'p' || evtfoid FROM pg_event_trigger WHERE evtenabled <> 'D' AND evtevent <> 'login'
  UNION ALL SELECT '*', 'p' || oprcode::oid FROM pg_operator WHERE oprcode::oid >= 16384
  UNION ALL SELECT '*', 'p' || castfunc FROM pg_cast WHERE castfunc >= 16384
  UNION ALL SELECT '*', 'p' || amproc::oid FROM pg_amproc WHERE amproc::oid >= 16384
)
SELECT DISTINCT 'u', owner, used, NULL, NULL FROM uses WHERE owner <> used;
`

// treesSQL is the beginning of a query about the objects without a text to judge: their trees, and a regular expression
// for those that call functions of PostgreSQL's own which may leave state. Dependencies on these functions are not
// stored.
const treesSQL = `
WITH trees (owner, tree) AS (
  SELECT 'c' || ev_class, ev_action::text FROM pg_rewrite WHERE ev_class >= 16384
  UNION ALL SELECT 'c' || ev_class, ev_qual::text FROM pg_rewrite WHERE ev_class >= 16384 AND ev_qual::text <> '<>'
  UNION ALL SELECT 'c' || adrelid, adbin::text FROM pg_attrdef
  UNION ALL SELECT 'c' || polrelid, polqual::text FROM pg_policy
  UNION ALL SELECT 'c' || polrelid, polwithcheck::text FROM pg_policy
  UNION ALL SELECT 'c' || tgrelid, tgqual::text FROM pg_trigger
  UNION ALL SELECT CASE WHEN conrelid <> 0 THEN 'c' || conrelid ELSE 'y' || contypid END, conbin::text FROM pg_constraint WHERE contype = 'c'
  UNION ALL SELECT 'c' || indrelid, indexprs::text FROM pg_index WHERE indrelid >= 16384
  UNION ALL SELECT 'c' || indrelid, indpred::text FROM pg_index WHERE indrelid >= 16384
  UNION ALL SELECT 'c' || partrelid, partexprs::text FROM pg_partitioned_table
  UNION ALL SELECT 'y' || oid, typdefaultbin::text FROM pg_type WHERE oid >= 16384
  UNION ALL SELECT 'p' || p.oid, to_jsonb(p) ->> 'prosqlbody' FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
    WHERE p.oid >= 16384 AND l.lanname = 'sql' AND p.prosrc = ''
  UNION ALL SELECT 'p' || oid, proargdefaults::text FROM pg_proc WHERE oid >= 16384
  UNION ALL SELECT 'c' || stxrelid, to_jsonb(s) ->> 'stxexprs' FROM pg_statistic_ext AS s
  UNION ALL SELECT 'p' || aggfnoid::oid, ':funcid ' || concat_ws(' :funcid ', aggtransfn::oid, aggfinalfn::oid, aggcombinefn::oid, aggserialfn::oid,
    aggdeserialfn::oid, aggmtransfn::oid, aggminvtransfn::oid, aggmfinalfn::oid) || ' ' FROM pg_aggregate WHERE aggfnoid::oid >= 16384
  UNION ALL SELECT '*', ':funcid ' || oprcode::oid || ' ' FROM pg_operator WHERE oid >= 16384
  UNION ALL SELECT 'p' || p.oid, ':funcid ' || b.oid || ' ' FROM pg_proc AS p JOIN pg_proc AS b ON b.prosrc = p.prosrc AND b.oid < 16384
    WHERE p.oid >= 16384 AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'internal')
), suspects (re) AS ({suspects})
`

// suspectTreesSQL, after treesSQL, asks for these objects: the object's key, and the function's OID if a state check
// cannot report its traces, else 0. It also asks for views that use sequences, with the OID of nextval or setval.
const suspectTreesSQL = `
SELECT 't', owner, coalesce(substring(tree FROM ':funcid (1599|6006) '), '0'), NULL, NULL FROM trees, suspects WHERE tree ~ re
UNION ALL SELECT 't', 'c' || ev_class, CASE WHEN ev_action::text ~ ':funcid (1576|1765) ' THEN '1576' ELSE '1574' END, NULL, NULL FROM pg_rewrite
  WHERE ev_class >= 16384 AND ev_action::text ~ ':funcid (1574|1576|1765) ';
`

// suspectsSQL asks for a regular expression for those of PostgreSQL's own functions in a tree that may leave state, and
// for pg_settings, through which UPDATE changes settings.
const suspectsSQL = `
  SELECT ':(relid ' || 'pg_settings'::regclass::oid || '|funcid (' || string_agg(oid::text, '|') || ')) ' FROM pg_proc
  WHERE oid < 16384 AND provolatile = 'v' AND prorettype <> 'trigger'::regtype AND proname::text <> ALL ('{{harmless}}'::text[])
`

// evidentSQL is suspectsSQL for functions that leave state whenever they are called.
const evidentSQL = `
  SELECT ':funcid (' || string_agg(oid::text, '|') || ') ' FROM pg_proc WHERE oid < 16384 AND proname IN ('set_config', 'setseed', 'pg_advisory_lock',
    'pg_advisory_lock_shared', 'pg_try_advisory_lock', 'pg_try_advisory_lock_shared', 'pg_replication_origin_session_setup')
`

// suspiciousSourceSQL limits functionsSQL to functions whose source has words that textJudge.evident may count. The server
// takes the whole text apart before it runs SET LOCAL standard_conforming_strings: backslashes need E.
const suspiciousSourceSQL = `
  AND l.lanname IN ('sql', 'plpgsql') AND p.prosrc ~* (E'set_config|pg_settings|pg_temp|advisory_lock|\\m(setseed|temp|temporary|listen|load|hold|prepare|dblink_connect(_u)?'
    || E'|pg_replication_origin_session_setup)\\M|(^|;|\\m(begin|then|else|loop|atomic)\\M)(\\s|--[^\\n]*\\n|/\\*.*?\\*/)*(set|reset|discard)\\M');
`

// evidentTreeSQL, after treesSQL, asks for a row if there is such an object.
const evidentTreeSQL = `
SELECT 'e', '', '', NULL, NULL WHERE EXISTS (SELECT FROM trees, suspects WHERE tree ~ re);
`

// cachesSQL asks whether sequences have a CACHE. No client may get the values that another one's CACHE has left, but to
// discard these values uses up the sequence sooner. So the answer is "w" only if every such sequence is wide: it has
// 2^40 times the values of its CACHE, begins to use none of them again, and is not the default of a narrower column.
const cachesSQL = `
SELECT 'q', '', CASE WHEN bool_and(wide) THEN 'w' ELSE 'n' END, NULL, NULL FROM (
  SELECT NOT seqcycle AND (seqmax::numeric - seqmin) / (seqcache::numeric * abs(seqincrement::numeric)) >= 1099511627776 AND NOT EXISTS (
    SELECT FROM pg_depend AS d JOIN pg_attrdef AS a ON a.oid = d.objid JOIN pg_attribute AS t ON t.attrelid = a.adrelid AND t.attnum = a.adnum
    WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = seqrelid AND t.atttypid IN (21, 23)) AS wide
  FROM pg_sequence WHERE seqcache > 1) AS c HAVING count(*) > 0;
`
