package pgproxy

import "strings"

// statements are the first words of statements that may leave state, whatever follows.
var statements = tableOf(map[traces]string{
	traceWrites:                `update delete with explain alter refresh truncate import`,
	traceWrites | traceInserts: `insert merge copy`,
	traceObjects | traceWrites: `create`, // search_path may begin with pg_temp
	traceLess:                  `drop close deallocate discard unlisten`,
	traceStatements:            `prepare`,
	traceChannels:              `listen`,
	traceLibraries:             `load`,
	traceUnknown:               `do call execute`,
})

// functions are the known words before a parenthesis: keywords, types, and functions of PostgreSQL and
// of widespread extensions, with the traces of each.
var functions = tableOf(map[traces]string{
	0:              keywordsBeforeParenthesis + harmlessFunctions + ` set_config`, // see settingsIn
	traceLocks:     `pg_advisory_lock pg_advisory_lock_shared pg_try_advisory_lock pg_try_advisory_lock_shared`,
	traceLess:      `pg_advisory_unlock pg_advisory_unlock_shared pg_advisory_unlock_all`,
	traceSequences: `nextval`,
	traceReads:     `currval lastval`,
	traceSeed:      `setseed`,
	traceDblink:    `dblink_connect dblink_connect_u`,
	traceOrigin:    `pg_replication_origin_session_setup`,

	traceSequences | traceSetval: `setval`,
})

// bodyWords are further such words in PL/pgSQL.
var bodyWords = tableOf(map[traces]string{0: `if elsif elseif while return perform query foreach slice assert raise`})

// tableOf returns a table of words with their traces.
func tableOf(lists map[traces]string) map[string]traces {
	table := make(map[string]traces)
	for left, words := range lists {
		for word := range strings.FieldsSeq(words) {
			table[word] = left
		}
	}
	return table
}

// keywordsBeforeParenthesis are keywords that a parenthesis may follow, and functions that the grammar
// knows.
const keywordsBeforeParenthesis = `
	add all and any array as asc between by bit case cast char character check coalesce collate column columns constraint cross cube current_time
	current_timestamp cycle dec decimal default delete desc distinct do else end escape except exclude exists extract fetch filter float for from full
	generated greatest group grouping having ilike in include inner insert int integer intersect interval into is join key last lateral least left like limit
	list localtime localtimestamp materialized natural nchar next not nothing null nullif nulls numeric of offset on only operator option or order
	over overlay partition position precision primary range real returning returns right rollup row rows select set sets similar smallint some
	statistics storage copy explain vacuum analyze reindex cluster substring symmetric tablesample then time timestamp timestamptz timetz to treat trim union unique update user using values
	varbit varchar varying view when where window with within without xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse
	xmlpi xmlroot xmlserialize xmltable json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
	json_serialize json_table json_value merge_action bpchar text hash btree gin gist brin spgist system bernoulli
`
