package pgtest_test

import (
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
)

// TestStandby has a primary and its standby change places.
func TestStandby(t *testing.T) {
	a := pgtest.Start(t, pgtest.WithStandbys())
	a.Exec(t, "create table kept (n int)", "insert into kept values (42)")
	b := a.Standby(t)
	if roles := standbys(t, a, b); roles != [2]bool{false, true} {
		t.Fatal(roles)
	}
	a.Stop(t)
	b.Promote(t)
	b.Exec(t, "insert into kept values (43)")
	a.Follow(t, b)
	if roles := standbys(t, a, b); roles != [2]bool{true, false} {
		t.Fatal(roles)
	}
	b.Freeze(t)
	b.Thaw(t)
	b.Exec(t, "insert into kept values (44)")
}

// standbys says which of the clusters are standbys.
func standbys(t *testing.T, all ...*pgtest.Cluster) (is [2]bool) {
	t.Helper()
	for i, c := range all {
		if err := c.Connect(t).QueryRow(t.Context(), "select pg_is_in_recovery()").Scan(&is[i]); err != nil {
			t.Fatal(err)
		}
	}
	return is
}
