package sqlite

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
	driver "zombiezen.com/go/sqlite"
)

// serverVersion is the PostgreSQL version reported to clients. Clients choose catalog queries by
// it; the queries of psql 15 are supported.
const serverVersion = "15.0"

// maxSettings and maxSetting bound the settings of a session.
const (
	maxSettings = 256
	maxSetting  = 4096
)

// reported are the settings that ParameterStatus reports.
var reported = []string{
	"application_name", "client_encoding", "DateStyle", "default_transaction_read_only", "in_hot_standby", "integer_datetimes",
	"IntervalStyle", "is_superuser", "server_encoding", "server_version", "session_authorization", "standard_conforming_strings", "TimeZone",
}

// fixed are the settings that clients cannot change.
var fixed = map[string]bool{
	"server_version": true, "server_version_num": true, "server_encoding": true, "integer_datetimes": true,
	"is_superuser": true, "session_authorization": true, "in_hot_standby": true, "max_identifier_length": true, "block_size": true,
}

// defaults returns the settings of a new session, by lower-case name.
func defaults(user string) map[string]string {
	return map[string]string{
		"application_name": "", "client_encoding": "UTF8", "datestyle": "ISO, MDY", "default_transaction_read_only": "off",
		"in_hot_standby": "off", "integer_datetimes": "on", "intervalstyle": "postgres", "is_superuser": "off",
		"server_encoding": "UTF8", "server_version": serverVersion + " (Headpond, SQLite " + driver.Version + ")", "server_version_num": "150000",
		"session_authorization": user, "standard_conforming_strings": "on", "timezone": "UTC", "search_path": "public",
		"transaction_isolation": "read committed", "default_transaction_isolation": "read committed", "transaction_read_only": "off",
		"statement_timeout": "0", "idle_in_transaction_session_timeout": "0", "lock_timeout": "0", "extra_float_digits": "1",
		"client_min_messages": "notice", "bytea_output": "hex", "max_identifier_length": "63", "lc_collate": "C", "lc_ctype": "C",
		"jit": "off", "default_table_access_method": "heap", "max_index_keys": "32", "role": "none", "row_security": "on", "block_size": "4096",
	}
}

// set changes a setting and reports it to the client if it is one of reported.
func (s *session) set(name, val string) error { return s.assign(name, val, false) }

// assign is set. With local it is SET LOCAL.
func (s *session) assign(name, val string, local bool) error {
	key := strings.ToLower(name)
	if fixed[key] {
		return sqlError("55P02", "parameter %q cannot be changed", name)
	}
	if len(val) > maxSetting || len(s.settings) >= maxSettings && s.settings[key] == "" {
		return sqlError(pgwire.StateConfigLimitExceeded, "too many or too long settings (limits: %d settings of %d bytes)", maxSettings, maxSetting)
	}
	switch key {
	case "client_encoding":
		if enc := strings.ToUpper(strings.NewReplacer("-", "", "_", "").Replace(val)); enc != "UTF8" && enc != "UNICODE" && enc != "SQLASCII" {
			return sqlError(pgwire.StateFeatureNotSupported, "client encoding %q is not supported: SQLite keeps texts in UTF-8", val)
		}
		val = "UTF8"
	case "standard_conforming_strings":
		if val != "on" {
			return sqlError(pgwire.StateFeatureNotSupported, "standard_conforming_strings can only be on")
		}
	case "transaction_isolation":
		return s.setTransaction(modes{isolation: strings.ToLower(val)})
	case "transaction_read_only", "default_transaction_read_only":
		on, ok := parseBool(val)
		if !ok {
			return sqlError(pgwire.StateInvalidParameterValue, "parameter %q requires a Boolean value", name)
		}
		if val = "off"; on {
			val = "on"
		}
		if key == "transaction_read_only" {
			return s.setTransaction(modes{readOnly: val})
		}
	case "default_transaction_isolation":
		if val = strings.ToLower(val); !slices.Contains(isolations, val) {
			return sqlError(pgwire.StateInvalidParameterValue, "invalid value for parameter %q: %q", name, val)
		}
	case "statement_timeout", "idle_in_transaction_session_timeout":
		if _, err := parseTimeout(val); err != nil {
			return sqlError(pgwire.StateInvalidParameterValue, "invalid value for parameter %q: %q", name, val)
		}
	}
	s.changing(key, local)
	s.put(key, val)
	return nil
}

// put stores the value of a setting and reports it to the client.
func (s *session) put(key, val string) {
	s.settings[key] = val
	for _, r := range reported {
		if strings.EqualFold(r, key) {
			s.c.Writer.Send(&pgwire.ParameterStatus{Name: r, Value: val})
		}
	}
}

// changing saves the value of a setting before a transaction changes it. For a local change it also saves the value
// after the transaction.
func (s *session) changing(key string, local bool) {
	if s.before == nil {
		s.before, s.later = maps.Clone(s.settings), map[string]string{}
	}
	if !local {
		delete(s.later, key)
	} else if _, noted := s.later[key]; !noted {
		s.later[key] = s.settings[key]
	}
}

// endSettings restores settings at the end of a transaction: the local ones, or all of them after a rollback.
func (s *session) endSettings(commit bool) {
	before, back := s.before, s.later
	if before == nil {
		return
	}
	s.before, s.later = nil, nil
	if !commit {
		maps.DeleteFunc(s.settings, func(key, _ string) bool { _, was := before[key]; return !was })
		back = before
	}
	for key, v := range back {
		if now, ok := s.settings[key]; !ok || now != v {
			s.put(key, v)
		}
	}
}

// timeout returns a setting that is a timeout, or fallback if it is 0.
func (s *session) timeout(name string, fallback time.Duration) time.Duration {
	if d, err := parseTimeout(s.settings[name]); err == nil && d > 0 && (fallback == 0 || d < fallback) {
		return d
	}
	return fallback
}

// parseTimeout reads a timeout in PostgreSQL's format: milliseconds, or a number with a unit.
func parseTimeout(s string) (time.Duration, error) {
	if ms, err := strconv.Atoi(s); err == nil {
		if ms < 0 || ms > 1<<31-1 {
			return 0, fmt.Errorf("%d ms is out of range", ms)
		}
		return time.Duration(ms) * time.Millisecond, nil
	}
	return time.ParseDuration(strings.ReplaceAll(strings.ReplaceAll(s, "min", "m"), " ", ""))
}

// show returns the value of a setting.
func (s *session) show(name string) (string, error) {
	now := s.asked.or(s.defaults())
	switch key := strings.ToLower(name); key {
	case "transaction_isolation":
		return now.isolation, nil
	case "transaction_read_only":
		return now.readOnly, nil
	default:
		if v, ok := s.settings[key]; ok {
			return v, nil
		}
	}
	return "", sqlError(pgwire.StateUndefinedObject, "unrecognized configuration parameter %q", name)
}

// showAll returns every setting, for SHOW ALL.
func (s *session) showAll() [][]string {
	var rows [][]string
	for name, v := range s.settings {
		rows = append(rows, []string{name, v, ""})
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i][0] < rows[j][0] })
	return rows
}

func itoa(n int) string { return strconv.Itoa(n) }
