package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"zombiezen.com/go/sqlite"
)

// responseError is an error that is sent to the client unchanged.
type responseError struct {
	pgwire.ErrorResponse
	cause error
}

func (e *responseError) Error() string { return e.ErrorResponse.Error() }

func (e *responseError) Unwrap() error { return e.cause }

// sqlError makes an error with a SQLSTATE.
func sqlError(state, format string, args ...any) *responseError {
	return &responseError{ErrorResponse: pgwire.ErrorResponse{
		Severity: pgwire.SeverityError, SeverityUnlocalized: pgwire.SeverityError,
		Code: state, Message: fmt.Sprintf(format, args...),
	}}
}

// at adds the position, given as a byte offset into the client's text.
func (e *responseError) at(sql string, offset int) *responseError {
	if offset >= 0 && offset <= len(sql) {
		e.Position = strconv.Itoa(utf8.RuneCountInString(sql[:offset]) + 1)
	}
	return e
}

func (e *responseError) hint(format string, args ...any) *responseError {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

func (e *responseError) because(err error) *responseError {
	e.cause = err
	return e
}

// reasonOf returns the reason under which an error is counted; "" for the errors of clients and for
// all others.
func reasonOf(state string) string {
	switch state {
	case pgwire.StateDiskFull:
		return listener.ReasonDiskFull
	case pgwire.StateDataCorrupted, pgwire.StateIOError:
		return listener.ReasonStorage
	case pgwire.StateInternalError:
		return listener.ReasonInternal
	}
	return ""
}

func unsupported(format string, args ...any) *responseError {
	return sqlError(pgwire.StateFeatureNotSupported, format+" is not supported by the SQLite backend", args...)
}

// toResponse converts any error to one for the client. Errors without a SQLSTATE get one from the
// errors that they wrap.
func toResponse(err error) *responseError {
	var resp *responseError
	if errors.As(err, &resp) {
		return resp
	}
	switch {
	case errors.Is(err, sqlitepool.ErrReadOnly):
		return sqlError(pgwire.StateReadOnlyTransaction, "cannot write: the database file is read-only").because(err)
	case errors.Is(err, sqlitepool.ErrNotDatabase):
		return corrupt(err)
	case errors.Is(err, pool.ErrTimeout), errors.Is(err, pool.ErrTooManyWaiters):
		return sqlError(pgwire.StateTooManyConnections, "no SQLite connection became free in time").because(err).
			hint("Other sessions hold them: end long transactions, or raise pool.max_size or pool.acquire_timeout.")
	case errors.Is(err, pool.ErrOpen):
		return sqlError(pgwire.StateIOError, "cannot open the database file").because(err).hint("The gateway's log says why.")
	case errors.Is(err, pool.ErrClosed):
		return sqlError(pgwire.StateAdminShutdown, "the server is shutting down").because(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return sqlError(pgwire.StateQueryCanceled, "canceling statement due to user request").because(err)
	case errors.Is(err, pgwire.ErrMalformed), errors.Is(err, io.ErrUnexpectedEOF):
		return sqlError(pgwire.StateProtocolViolation, "%v", err).because(err)
	}
	if code := sqlite.ErrCode(err); code != sqlite.ResultError || isDriverError(err) {
		return fromSQLite(code, err)
	}
	return sqlError(pgwire.StateInternalError, "internal error: %v", err).because(err)
}

func isDriverError(err error) bool { return strings.HasPrefix(err.Error(), "sqlite: ") }

func corrupt(err error) *responseError {
	return sqlError(pgwire.StateDataCorrupted, "the database file is not a SQLite database or is corrupt").because(err).
		hint("Restore it from a backup, or try: sqlite3 FILE .recover")
}

func full(err error) *responseError {
	return sqlError(pgwire.StateDiskFull, "the disk of the database file is full").because(err).
		hint("Nothing can be written until the gateway's operator has made room; reading goes on.")
}

// primaryStates maps SQLite's primary result codes.
var primaryStates = map[sqlite.ResultCode]string{
	sqlite.ResultBusy:      pgwire.StateLockNotAvailable,
	sqlite.ResultLocked:    pgwire.StateLockNotAvailable,
	sqlite.ResultReadOnly:  pgwire.StateReadOnlyTransaction,
	sqlite.ResultInterrupt: pgwire.StateQueryCanceled,
	sqlite.ResultNoMem:     pgwire.StateOutOfMemory,
	sqlite.ResultIOErr:     pgwire.StateIOError,
	sqlite.ResultCantOpen:  pgwire.StateIOError,
	sqlite.ResultTooBig:    pgwire.StateProgramLimitExceeded,
	sqlite.ResultAuth:      pgwire.StateInsufficientPrivilege,
	sqlite.ResultMismatch:  pgwire.StateDatatypeMismatch,
	sqlite.ResultRange:     pgwire.StateUndefinedParameter,
}

var constraintStates = map[sqlite.ResultCode]string{
	sqlite.ResultConstraintUnique:     pgwire.StateUniqueViolation,
	sqlite.ResultConstraintPrimaryKey: pgwire.StateUniqueViolation,
	sqlite.ResultConstraintRowID:      pgwire.StateUniqueViolation,
	sqlite.ResultConstraintForeignKey: pgwire.StateForeignKeyViolation,
	sqlite.ResultConstraintNotNull:    pgwire.StateNotNullViolation,
	sqlite.ResultConstraintCheck:      pgwire.StateCheckViolation,
}

func fromSQLite(code sqlite.ResultCode, err error) *responseError {
	msg := driverMessage(err)
	switch code.ToPrimary() {
	case sqlite.ResultConstraint:
		state, ok := constraintStates[code]
		if !ok {
			state = pgwire.StateIntegrityViolation
		}
		return sqlError(state, "%s", msg).because(err)
	case sqlite.ResultCorrupt, sqlite.ResultNotADB:
		return corrupt(err)
	case sqlite.ResultInterrupt:
		return sqlError(pgwire.StateQueryCanceled, "canceling statement due to user request").because(err)
	case sqlite.ResultError:
		return sqlError(stateOf(msg), "%s", msg).because(err)
	case sqlite.ResultFull:
		return full(err)
	case sqlite.ResultIOErr:
		if code == sqlite.ResultIOErrSHMSize { // the WAL index could not be allocated
			return full(err)
		}
	}
	state, ok := primaryStates[code.ToPrimary()]
	if !ok {
		state = pgwire.StateInternalError
	}
	resp := sqlError(state, "%s", msg).because(err)
	switch code.ToPrimary() {
	case sqlite.ResultNoMem:
		return resp.hint("The statements of all clients share the gateway's max_memory_mib: read less at once.")
	case sqlite.ResultTooBig:
		return resp.hint("A value may take a fourth of the gateway's max_memory_mib.")
	}
	return resp
}

var (
	driverPrefix = regexp.MustCompile(`^(sqlite: )?(prepare|step|reset|bind)( "(?s:.*)")?: (\d+:\d+: )?`)
	driverSuffix = regexp.MustCompile(` \(\d+\)$`)
)

// driverMessage removes the driver's additions from SQLite's message.
func driverMessage(err error) string {
	msg := driverPrefix.ReplaceAllString(err.Error(), "")
	msg = strings.TrimPrefix(msg, "sqlite: ")
	msg = strings.TrimPrefix(msg, "SQL logic error: ")
	msg = strings.TrimPrefix(msg, "constraint failed: ")
	return driverSuffix.ReplaceAllString(msg, "")
}

// messageStates maps SQLite's messages to SQLSTATEs, because SQLite has one code for every mistake
// in a statement (build.c, resolve.c, expr.c, parse.y).
var messageStates = []struct{ part, state string }{
	{"no such table", pgwire.StateUndefinedTable},
	{"no such view", pgwire.StateUndefinedTable},
	{"no such index", pgwire.StateUndefinedObject},
	{"no such trigger", pgwire.StateUndefinedObject},
	{"no such savepoint", "3B001"},
	{"no such column", pgwire.StateUndefinedColumn},
	{"has no column named", pgwire.StateUndefinedColumn},
	{"ambiguous column name", pgwire.StateAmbiguousColumn},
	{"duplicate column name", pgwire.StateDuplicateColumn},
	{"already exists", pgwire.StateDuplicateTable},
	{"there is already", pgwire.StateDuplicateTable},
	{"no such function", pgwire.StateUndefinedFunction},
	{"wrong number of arguments", pgwire.StateUndefinedFunction},
	{"no such collation", pgwire.StateUndefinedObject},
	{"integer overflow", pgwire.StateNumericOutOfRange},
	{"malformed JSON", pgwire.StateInvalidTextRepresent},
	{"may not be modified", pgwire.StateInsufficientPrivilege},
	{"cannot modify", pgwire.StateFeatureNotSupported},
	{"not authorized", pgwire.StateInsufficientPrivilege},
	{"too many", pgwire.StateProgramLimitExceeded},
	{"too large", pgwire.StateProgramLimitExceeded},
	{"values for", pgwire.StateSyntaxError},
	{"syntax error", pgwire.StateSyntaxError},
	{"incomplete input", pgwire.StateSyntaxError},
	{"unrecognized token", pgwire.StateSyntaxError},
}

func stateOf(msg string) string {
	for _, m := range messageStates {
		if strings.Contains(msg, m.part) {
			return m.state
		}
	}
	return pgwire.StateSyntaxError
}
