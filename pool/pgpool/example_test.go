package pgpool_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/pool/pgpool"
)

func Example() {
	ctx := context.Background()
	db, err := pgpool.New(pgpool.Config{ConnString: databaseURL()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	for range 3 {
		var sum int
		err = db.QueryRow(ctx, "select sum(n) from generate_series(1, 10) n").Scan(&sum)
		fmt.Println(sum, err)
	}
	// Output:
	// 55 <nil>
	// 55 <nil>
	// 55 <nil>
}

// Statements that depend on each other need one connection.
func ExamplePool_With() {
	ctx := context.Background()
	db, err := pgpool.New(pgpool.Config{ConnString: databaseURL(), ResetSession: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	var zone string
	err = db.With(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "set timezone = 'Europe/Zurich'"); err != nil {
			return err
		}
		return conn.QueryRow(ctx, "show timezone").Scan(&zone)
	})
	fmt.Println(zone, err)
	// Output: Europe/Zurich <nil>
}

func ExamplePool_Begin() {
	ctx := context.Background()
	db, err := pgpool.New(pgpool.Config{ConnString: databaseURL()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	var balance int
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "create temp table account (balance int) on commit drop"); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "insert into account values ($1) returning balance", 100).Scan(&balance)
	})
	fmt.Println(balance, err)
	// Output: 100 <nil>
}

// Several statements take one round trip. The results hold the connection until they are closed.
func ExamplePool_SendBatch() {
	ctx := context.Background()
	db, err := pgpool.New(pgpool.Config{ConnString: databaseURL()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	batch := &pgx.Batch{}
	for n := range 3 {
		batch.Queue("select $1::int * 2", n+1).QueryRow(func(row pgx.Row) error {
			var twice int
			err := row.Scan(&twice)
			fmt.Println(twice, err)
			return err
		})
	}
	fmt.Println(db.SendBatch(ctx, batch).Close())
	// Output:
	// 2 <nil>
	// 4 <nil>
	// 6 <nil>
	// <nil>
}
