package sqlite_test

import (
	"slices"
	"testing"
)

// Violations name the constraint as PostgreSQL does.
func TestConstraintNames(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE accounts (id INTEGER PRIMARY KEY, email TEXT UNIQUE, org INT NOT NULL, "user name" TEXT CONSTRAINT one_name UNIQUE,
		age INT CHECK (age > 0), pair INT, CONSTRAINT both UNIQUE (org, pair), UNIQUE (pair, "user name"), CONSTRAINT sane CHECK (age < 200), CHECK (org <> 13))`)
	mustExec(t, conn, `CREATE TABLE unseparated (a INT, b INT, UNIQUE (a) CHECK (a > 0) CONSTRAINT small CHECK (b < /* far */ 10))`) // SQLite allows constraints without commas
	mustExec(t, conn, `INSERT INTO unseparated VALUES (1, 1)`)
	mustExec(t, conn, `CREATE TABLE keyed (a INT, b INT, PRIMARY KEY (a, b))`)
	mustExec(t, conn, `CREATE UNIQUE INDEX by_age ON accounts (age)`)
	mustExec(t, conn, `CREATE TABLE sums (a INT, b INT)`)
	mustExec(t, conn, `CREATE UNIQUE INDEX by_sum ON sums (a + b)`)
	mustExec(t, conn, `INSERT INTO sums VALUES (1, 1)`)
	mustExec(t, conn, `INSERT INTO accounts VALUES (1, 'a', 1, 'x', 20, 5)`)
	mustExec(t, conn, `INSERT INTO keyed VALUES (1, 1)`)
	for sql, want := range map[string][3]string{
		`INSERT INTO accounts VALUES (1, 'b', 2, 'y', 21, 6)`:   {"23505", "accounts_pkey", "accounts"},
		`INSERT INTO accounts VALUES (2, 'a', 2, 'y', 21, 6)`:   {"23505", "accounts_email_key", "accounts"},
		`INSERT INTO accounts VALUES (2, 'b', 2, 'x', 21, 6)`:   {"23505", "one_name", "accounts"},
		`INSERT INTO accounts VALUES (2, 'b', 1, 'y', 21, 5)`:   {"23505", "both", "accounts"},
		`INSERT INTO accounts VALUES (2, 'b', 2, 'y', 20, 6)`:   {"23505", "by_age", "accounts"},
		`INSERT INTO sums VALUES (0, 2)`:                        {"23505", "by_sum", ""},
		`UPDATE accounts SET age = -1`:                          {"23514", "accounts_age_check", "accounts"},
		`UPDATE accounts SET age = 300`:                         {"23514", "sane", "accounts"},
		`UPDATE accounts SET org = 13`:                          {"23514", "accounts_org_check", "accounts"},
		`INSERT INTO accounts (id, email) VALUES (9, 'c')`:      {"23502", "", "accounts"},
		`INSERT INTO keyed VALUES (1, 1)`:                       {"23505", "keyed_pkey", "keyed"},
		`INSERT INTO unseparated VALUES (1, 1)`:                 {"23505", "unseparated_a_key", "unseparated"},
		`INSERT INTO unseparated VALUES (2, 11)`:                {"23514", "small", "unseparated"},
		`INSERT INTO unseparated VALUES (0, 1)`:                 {"23514", "unseparated_a_check", "unseparated"},
		`INSERT INTO posts (author, title) VALUES (99, 'none')`: {"23503", "", ""},
	} {
		_, err := conn.Exec(t.Context(), sql)
		if pg := wantState(t, err, want[0], sql); pg.ConstraintName != want[1] || pg.TableName != want[2] {
			t.Errorf("%s: constraint %q of table %q, want %q of %q (%s)", sql, pg.ConstraintName, pg.TableName, want[1], want[2], pg.Message)
		}
	}
	mustExec(t, conn, `ALTER TABLE unseparated DROP CONSTRAINT small`)
	mustExec(t, conn, `INSERT INTO unseparated VALUES (2, 11)`)
	rows, err := conn.Query(t.Context(), `SELECT conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE relname = 'accounts' ORDER BY conname`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	want := []string{"accounts_age_check", "accounts_email_key", "accounts_org_check", "accounts_pair_user name_key", "accounts_pkey", "both", "one_name", "sane"}
	if rows.Err() != nil || !slices.Equal(names, want) {
		t.Errorf("the catalog has %q, %v; want %q", names, rows.Err(), want)
	}
}
