// Package console is a pgproxy.Backend that is no database: it answers the commands of PgBouncer's admin console, so that
// what monitors and operates PgBouncer works with Headpond.
//
//	c, err := console.New(console.Config{
//		Database: "pgbouncer", Admins: []string{"alice"}, Viewers: []string{"stats"}, Gateway: gateway,
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	p, err := pgproxy.New(pgproxy.Config{
//		Databases: map[string]pgproxy.Backend{"app": pg}, Users: users,
//		Console: pgproxy.Console{Database: "pgbouncer", Backend: c},
//	})
//
// A Console knows the commands, their columns and the rules who may do what. What it shows, and does, comes from its
// [Gateway], which has no notion of PgBouncer.
//
// The columns are those of PgBouncer 1.25, by name, order and type, but for the column id of SHOW CLIENTS, which has 8
// bytes. What Headpond does not know is 0 or NULL: docs/console.md lists it.
//
// A session holds nothing between commands: it is suspended as any idle session, and ends at any time when the gateway
// drains. Commands run off the loops (fiber.Block).
package console
