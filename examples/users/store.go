package main

import (
	"context"
	"fmt"
	"net/http"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/headpond/headpond/pool/sqlitepool"
	"github.com/headpond/headpond/route"
)

// store keeps users in a SQLite file. Its methods may be called by many goroutines at once.
type store struct{ db *sqlitepool.DB }

const schema = `CREATE TABLE IF NOT EXISTS users (
	id    INTEGER PRIMARY KEY,
	name  TEXT NOT NULL,
	email TEXT NOT NULL UNIQUE,
	age   INTEGER NOT NULL
)`

func openStore(ctx context.Context, path string) (*store, error) {
	db, err := sqlitepool.Open(path, sqlitepool.Config{})
	if err != nil {
		return nil, err
	}
	err = db.Write(ctx, func(c *sqlite.Conn) error { return sqlitex.ExecuteTransient(c, schema, nil) })
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("creating the table: %w", err)
	}
	return &store{db}, nil
}

func (s *store) close() { s.db.Close() }

// insert adds a user and sets its ID.
func (s *store) insert(ctx context.Context, u *User) error {
	return s.db.Write(ctx, func(c *sqlite.Conn) error {
		err := sqlitex.Execute(c, "INSERT INTO users (name, email, age) VALUES (?, ?, ?)", &sqlitex.ExecOptions{Args: []any{u.Name, u.Email, u.Age}})
		u.ID = c.LastInsertRowID()
		return err
	})
}

const selectUsers = "SELECT id, name, email, age FROM users "

// query calls f with each user that a statement finds.
func query(c *sqlite.Conn, sql string, args []any, f func(User) error) error {
	return sqlitex.Execute(c, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: func(row *sqlite.Stmt) error {
		return f(User{ID: row.ColumnInt64(0), Name: row.ColumnText(1), Email: row.ColumnText(2), Age: row.ColumnInt(3)})
	}})
}

// each calls f with the users after an id, in order, of which at most limit.
func (s *store) each(ctx context.Context, after int64, limit int, f func(User) error) error {
	return s.db.Read(ctx, func(c *sqlite.Conn) error {
		return query(c, selectUsers+"WHERE id > ? ORDER BY id LIMIT ?", []any{after, limit}, f)
	})
}

// find returns a user, or a problem of status 404.
func (s *store) find(ctx context.Context, id int64) (u User, err error) {
	err = s.db.Read(ctx, func(c *sqlite.Conn) error {
		u, err = findOn(c, id)
		return err
	})
	return u, err
}

func findOn(c *sqlite.Conn, id int64) (u User, err error) {
	err = query(c, selectUsers+"WHERE id = ?", []any{id}, func(found User) error {
		u = found
		return nil
	})
	if err == nil && u.ID == 0 {
		err = noUser(id)
	}
	return u, err
}

func noUser(id int64) error { return route.Errorf(http.StatusNotFound, "there is no user %d", id) }

// change lets f change a user, in a transaction.
func (s *store) change(ctx context.Context, id int64, f func(*User)) (u User, err error) {
	err = s.db.Write(ctx, func(c *sqlite.Conn) (err error) {
		defer sqlitex.Save(c)(&err)
		if u, err = findOn(c, id); err != nil {
			return err
		}
		f(&u)
		return sqlitex.Execute(c, "UPDATE users SET name = ?, email = ?, age = ? WHERE id = ?", &sqlitex.ExecOptions{Args: []any{u.Name, u.Email, u.Age, u.ID}})
	})
	return u, err
}

// delete removes a user, or returns a problem of status 404.
func (s *store) delete(ctx context.Context, id int64) error {
	return s.db.Write(ctx, func(c *sqlite.Conn) error {
		err := sqlitex.Execute(c, "DELETE FROM users WHERE id = ?", &sqlitex.ExecOptions{Args: []any{id}})
		if err == nil && c.Changes() == 0 {
			err = noUser(id)
		}
		return err
	})
}

// count returns how many users there are.
func (s *store) count(ctx context.Context) (n int64, err error) {
	err = s.db.Read(ctx, func(c *sqlite.Conn) error {
		n, err = sqlitex.ResultInt64(c.Prep("SELECT count(*) FROM users"))
		return err
	})
	return n, err
}
