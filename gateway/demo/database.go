package demo

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/headpond/headpond/pool/sqlitepool"
)

//go:embed schema.sql
var schema string

// fillTimeout bounds the creation of the sample data, which takes well under a second.
const fillTimeout = time.Minute

// fillDatabase creates the sample data in the file at path. A file that has the data already is not changed.
func fillDatabase(path string) error {
	db, err := sqlitepool.Open(path, sqlitepool.Config{})
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), fillTimeout)
	defer cancel()
	return db.Write(ctx, func(c *sqlite.Conn) error {
		have := false
		err := sqlitex.Execute(c, "SELECT 1 FROM sqlite_schema WHERE name = 'users'", &sqlitex.ExecOptions{
			ResultFunc: func(*sqlite.Stmt) error { have = true; return nil },
		})
		if err != nil || have {
			return err
		}
		if err := sqlitex.ExecuteScript(c, schema, nil); err != nil {
			return fmt.Errorf("sample data: %w", err)
		}
		return nil
	})
}
