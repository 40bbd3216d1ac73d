package sqlitepool_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/headpond/headpond/pool/sqlitepool"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

func Example() {
	dir, err := os.MkdirTemp("", "sqlitepool")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sqlitepool.Open(filepath.Join(dir, "app.db"), sqlitepool.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ctx := context.Background()
	err = db.Write(ctx, func(c *sqlite.Conn) error {
		return sqlitex.ExecuteScript(c, "CREATE TABLE users (name TEXT); INSERT INTO users VALUES ('ada'), ('grace');", nil)
	})
	if err != nil {
		log.Fatal(err)
	}
	err = db.Read(ctx, func(c *sqlite.Conn) error {
		return sqlitex.Execute(c, "SELECT name FROM users ORDER BY name", &sqlitex.ExecOptions{
			ResultFunc: func(stmt *sqlite.Stmt) error {
				fmt.Println(stmt.ColumnText(0))
				return nil
			},
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// ada
	// grace
}
