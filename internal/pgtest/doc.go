// Package pgtest starts throw-away PostgreSQL servers for tests.
//
//	func TestMain(m *testing.M) { leaktest.Main(pgtest.Runner(m)) }
//
//	func TestQuery(t *testing.T) {
//		db := pgtest.Shared(t) // one server for the whole test binary
//		conn := db.Connect(t)  // a *pgx.Conn as the superuser
//		...
//	}
//
// A test that changes settings, needs passwords or kills its server starts its own:
//
//	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithSetting("max_connections", "30"))
//	db.CreateUser(t, "app", "secret")
//	db.Kill(t)    // kill -9, as a crash would
//	db.Restart(t) // the same address and data
//
// A cluster may have streaming standbys, to be promoted:
//
//	primary := pgtest.Start(t, pgtest.WithStandbys())
//	standby := primary.Standby(t)
//	primary.Kill(t)
//	standby.Promote(t)
//
// Any installed server from major version 13 on is used. Each cluster listens on a free
// port of 127.0.0.1 and on a Unix socket, trades durability for speed (fsync off), and is
// stopped and removed when the test ends. A test run by root starts the server as user
// postgres or nobody, because PostgreSQL refuses to run as root. On Linux the server also
// dies when the test binary is killed.
//
// Clusters live in /dev/shm if there are 4 GiB free, else in the temporary directory. Files made by
// initdb are kept there and copied, so that only the first test of a day pays for initdb. A cluster
// in /dev/shm whose test binary was killed is removed by the next one.
package pgtest
