package integration

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// wantState requires a PostgreSQL error with one of the SQLSTATEs, and returns it.
func wantState(t testing.TB, err error, states ...string) *pgconn.PgError {
	t.Helper()
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !slices.Contains(states, e.Code) {
		t.Errorf("error = %v, want SQLSTATE %s", err, strings.Join(states, " or "))
		return &pgconn.PgError{}
	}
	return e
}
