package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/pgproxy"
)

// TestHiddenAfterFailedFirstReading has the first reading fail once: checks go on.
func TestHiddenAfterFailedFirstReading(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	end := g.backend.HoldReading()
	c, other := g.connect(t, ""), g.connect(t, "")
	end(false)
	_ = g.backend.HoldReading()
	simple(t, c, "insert into sleeps values (1)")
	hasOwnWorkMem(t, c, other, "")
}

// TestHiddenBehindDDLThatWaited has a transaction attach a partition, judged before the trigger that the partition gets and ended after the reading.
func TestHiddenBehindDDLThatWaited(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 3))
	defines, attaches, c := g.connect(t, ""), g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	simple(t, defines, "begin")
	simple(t, defines, "lock table q in share row exclusive mode")
	simple(t, attaches, "begin")
	w := uses(t, attaches, "alter table q attach partition q1 for values in (1)")
	waitsForLock(t, c)
	simple(t, defines, "create trigger g before insert on q for each row execute function fires()")
	simple(t, defines, "commit")
	if err := <-w; err != nil {
		t.Fatal(err)
	}
	settle(t, g)
	end := g.backend.HoldReading()
	end(true)
	simple(t, attaches, "commit")
	_ = g.backend.HoldReading()
	simple(t, c, "insert into q1 values (1)")
	followsOnly(t, g, c)
}
