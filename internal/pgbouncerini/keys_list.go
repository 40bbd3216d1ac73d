package pgbouncerini

// defaultAuthQuery is PgBouncer's.
const defaultAuthQuery = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin"

// mainKeys are the settings of section [pgbouncer]. A setting that is Missing is lost only if its value is not the default.
var mainKeys = []key{
	// Where it listens.
	{"listen_addr", "", nil, Carried, "`listen`; a listener for each address, `*` is `:6432`", ""},
	{"listen_port", "6432", portNumber, Carried, "`listen`", ""},
	{"unix_socket_dir", "/tmp", nil, Carried, "a listener `unix:DIR/.s.PGSQL.PORT`; in endpoints without a host, too", ""},
	{"unix_socket_mode", "0777", whole, Carried, "`socket: {mode: …}`", ""},
	{"unix_socket_group", "", nil, Carried, "`socket: {owner: USER:GROUP}`, with the user of `user`", ""},
	{"listen_backlog", "128", whole, Ignored, "the system's limit applies; `max_queue` bounds clients that wait", ""},
	{"so_reuseport", "0", whole, Itself, "one process uses all cores (`loops`): one is enough", ""},
	{"peer_id", "0", whole, Itself, "one process uses all cores, and knows its clients' cancel requests", ""},
	{"tcp_defer_accept", "1", whole, Itself, "always on, for a second", "configuration.md#clients-that-have-sent-nothing"},
	{"tcp_socket_buffer", "0", whole, Ignored, "the system sizes its buffers", ""},
	{"tcp_keepalive", "1", whole, Carried, "`keep_alive`, which is always on", ""},
	{"tcp_keepcnt", "0", whole, Carried, "`keep_alive: {count: …}` of listeners and upstreams", ""},
	{"tcp_keepidle", "0", whole, Carried, "`keep_alive: {idle: …}`", ""},
	{"tcp_keepintvl", "0", whole, Carried, "`keep_alive: {interval: …}`", ""},
	{"tcp_user_timeout", "0", whole, Carried, "`keep_alive: {tcp_user_timeout: …}`", ""},

	// Pools and their limits.
	{"pool_mode", "session", poolMode, Carried, "`mode`", ""},
	{"max_client_conn", "100", whole, Carried, "`max_conns`, of each listener", ""},
	{"default_pool_size", "20", size, Carried, "`pool.max_size`; divided by the number of hosts, as it is for each endpoint", ""},
	{"min_pool_size", "0", size, Carried, "`pool.min_idle`: counts idle connections. None for databases without `user=`", ""},
	{"reserve_pool_size", "0", size, Carried, "added to `pool.max_size`: there is no reserve", ""},
	{"reserve_pool_timeout", "5", seconds, Ignored, "the reserve is part of `max_size`", ""},
	{"max_db_connections", "0", size, Carried, "`postgres.max_connections`; with `user=` the smaller limit is `max_size`", ""},
	{"max_db_client_connections", "0", size, Carried, "`max_clients: {per_database: …}`, of each listener", "postgres.md#clients-of-a-user-or-a-database"},
	{"max_user_connections", "0", size, Missing, "on the server: `ALTER ROLE ROLE CONNECTION LIMIT N`", ""},
	{"max_user_client_connections", "0", size, Carried, "`max_clients: {per_user: …}`, of each listener", "postgres.md#clients-of-a-user-or-a-database"},
	{"server_round_robin", "0", whole, Differs, "the connection that was used last is taken first; `balance` chooses endpoints", ""},
	{"max_prepared_statements", "200", size, Itself, "prepared statements are always kept", "session-state.md#prepared-statements-in-transaction-mode"},
	{"track_extra_parameters", "IntervalStyle", nil, Itself, "every setting follows its client", "session-state.md#settings"},
	{"ignore_startup_parameters", "", nil, Itself, "clients may set every setting; it takes effect, as on a server", "session-state.md#settings"},
	{"disable_pqexec", "0", whole, Missing, "clients may send several statements in one text", ""},
	{"application_name_add_host", "0", whole, Missing, "`ctl clients` and the log show the address of a client", ""},
	{"login_notify_message", "", nil, Missing, "clients get no message", ""},
	{"query_wait_notify", "5", size, Ignored, "clients that wait get no notice", ""},

	// Authentication.
	{"auth_type", "md5", oneOf("any", "trust", "plain", "md5", "cert", "hba", "ldap", "pam", "scram-sha-256"), Carried, "`auth`: `plain` is md5 or SCRAM, `any` is `trust`; not `ldap`, `pam`", ""},
	{"auth_file", "", nil, Carried, "`users_file`, the same file", ""},
	{"auth_hba_file", "", nil, Carried, "`auth_hba_file`, the same file", ""},
	{"auth_ident_file", "", nil, Carried, "`auth_ident_file`, the same file", ""},
	{"auth_ldap_options", "", nil, Carried, "**not supported**: `auth_query` asks a server for users", ""},
	{"auth_user", "", nil, Carried, "`user` of an upstream for `auth_upstream`", "postgres.md#users-of-a-server"},
	{"auth_query", defaultAuthQuery, nil, Carried, "`auth_query`: of the listener; schemas named; hashes only", "postgres.md#users-of-a-server"},
	{"auth_dbname", "", nil, Carried, "`dbname` of that upstream", ""},
	{"scram_iterations", "4096", whole, Ignored, "secrets that the gateway makes have 4096 iterations", ""},
	{"admin_users", "", nil, Carried, "`console: {admins: […]}`", "console.md"},
	{"stats_users", "", nil, Carried, "`console: {viewers: […]}`", "console.md"},
	{"user", "", nil, Differs, "start the gateway as that user: `User=` of systemd", "running.md"},

	// TLS with clients.
	{"client_tls_sslmode", "disable", sslMode, Carried, "`tls` of the listener; from `require` on also `require_tls`", ""},
	{"client_tls_key_file", "", nil, Carried, "`tls.key` of the listener", ""},
	{"client_tls_cert_file", "", nil, Carried, "`tls.cert` of the listener", ""},
	{"client_tls_ca_file", "", nil, Carried, "`tls.client_ca` of the listener, if clients need certificates", ""},
	{"client_tls_protocols", "secure", nil, Carried, "always TLS 1.2 and 1.3, which is `secure`", ""},
	{"client_tls_ciphers", "default", nil, Carried, "always those of Go", ""},
	{"client_tls13_ciphers", "", nil, Carried, "always those of Go", ""},
	{"client_tls_ecdhcurve", "auto", nil, Itself, "the curves are those of Go", ""},
	{"client_tls_dheparams", "auto", nil, Itself, "key exchange is by elliptic curves", ""},

	// TLS with servers.
	{"server_tls_sslmode", "prefer", sslMode, Carried, "`tls` of the upstream: `require` is `{insecure_skip_verify: true}`", ""},
	{"server_tls_ca_file", "", nil, Carried, "`tls.ca` of the upstream; with `verify-ca` also `verify: ca`", ""},
	{"server_tls_key_file", "", nil, Carried, "`tls.key` of the upstream", ""},
	{"server_tls_cert_file", "", nil, Carried, "`tls.cert` of the upstream", ""},
	{"server_tls_protocols", "secure", nil, Carried, "always TLS 1.2 and 1.3, which is `secure`", ""},
	{"server_tls_ciphers", "default", nil, Carried, "always those of Go", ""},
	{"server_tls13_ciphers", "", nil, Carried, "always those of Go", ""},

	// Connections to servers.
	{"server_reset_query", "DISCARD ALL", nil, Itself, "what a client leaves never reaches another", "postgres.md#the-modes"},
	{"server_reset_query_always", "0", whole, Itself, "what a client leaves follows it or pins it", "postgres.md#what-transaction-mode-cannot-keep"},
	{"server_check_delay", "30", seconds, Carried, "`pool.check_after`", ""},
	{"server_check_query", "<empty>", nil, Carried, "the gateway has its own check; empty: `check_after: never`", ""},
	{"server_fast_close", "0", whole, Ignored, "a reload with another server lets sessions end", ""},
	{"server_lifetime", "3600", seconds, Carried, "`pool.max_lifetime`", ""},
	{"server_idle_timeout", "600", seconds, Carried, "`pool.idle_timeout`", ""},
	{"server_connect_timeout", "15", seconds, Carried, "`connect_timeout` of the upstream", ""},
	{"server_login_retry", "15", seconds, Itself, "`eject` puts servers out that fail, and tries them again", "configuration.md#ejection"},
	{"autodb_idle_timeout", "3600", seconds, Itself, "pools without clients end after `idle_timeout`", ""},
	{"pool_idle_timeout", "0", seconds, Itself, "pools without clients end after `idle_timeout`", ""},
	{"dns_max_ttl", "15", seconds, Itself, "each new connection looks the name up; see `discover`", "discovery.md"},
	{"dns_nxdomain_ttl", "15", seconds, Itself, "each new connection looks the name up", ""},
	{"dns_zone_check_period", "0", seconds, Differs, "`discover: {dns: …}` of an upstream follows a name", "discovery.md"},
	{"resolv_conf", "", nil, Differs, "the system's is used; `discover: {dns: …}` may name servers", "discovery.md"},

	// Time-outs.
	{"query_timeout", "0", seconds, Carried, "the server's own: `params: {statement_timeout: …}`", "postgres.md#settings-of-the-upstream"},
	{"query_wait_timeout", "120", seconds, Carried, "`pool.acquire_timeout`", ""},
	{"idle_transaction_timeout", "0", seconds, Carried, "the server's own: `params: {idle_in_transaction_session_timeout: …}`", ""},
	{"transaction_timeout", "0", seconds, Missing, "PostgreSQL 17 has it: `params: {transaction_timeout: Ns}` of the upstream", ""},
	{"client_idle_timeout", "0", seconds, Carried, "`client_idle_timeout`", "postgres.md#idle-clients"},
	{"client_login_timeout", "60", seconds, Itself, "clients have 15 seconds to log in", ""},
	{"cancel_wait_timeout", "10", seconds, Itself, "cancel requests wait for no connection of a pool", ""},
	{"suspend_timeout", "10", seconds, Ignored, "upgrades hand over the sockets, and sessions end in their time", "running.md#upgrades"},

	// Logs, and the process.
	{"logfile", "", nil, Differs, "the log goes to standard error: let systemd or the shell keep it", ""},
	{"syslog", "0", whole, Differs, "the log goes to standard error: let systemd pass it on", ""},
	{"syslog_ident", "pgbouncer", nil, Ignored, "the log goes to standard error", ""},
	{"syslog_facility", "daemon", nil, Ignored, "the log goes to standard error", ""},
	{"log_connections", "1", whole, Ignored, "`access_log: true` of a listener logs each transaction or session", ""},
	{"log_disconnections", "1", whole, Ignored, "`access_log: true` of a listener logs each transaction or session", ""},
	{"log_pooler_errors", "1", whole, Itself, "errors are logged and counted", "metrics.md"},
	{"log_stats", "1", whole, Itself, "metrics, `ctl status` and `SHOW STATS` have them", "metrics.md"},
	{"stats_period", "60", whole, Itself, "averages are of the last minute", "console.md#columns"},
	{"verbose", "0", whole, Carried, "`log.level: debug`", ""},
	{"pidfile", "", nil, Ignored, "systemd knows the process; `ctl` does what signals do", "running.md"},
	{"conffile", "", nil, Ignored, "a reload reads the same file again", ""},
	{"service_name", "pgbouncer", nil, Ignored, "it is for Windows", ""},
	{"job_name", "pgbouncer", nil, Ignored, "it is for Windows", ""},
	{"pkt_buf", "4096", whole, Itself, "buffers are sized by the engine", ""},
	{"sbuf_loopcnt", "5", whole, Itself, "a busy connection does not stall others", ""},
	{"max_packet_size", "2147483647", unsigned, Ignored, "long messages are streamed in bounded memory", ""},
}

// databaseKeys are the keys of a connection string in section [databases].
var databaseKeys = []key{
	{"dbname", "", nil, Carried, "`dbname` of the upstream, if it is not the client's name for it", ""},
	{"host", "", nil, Carried, "`endpoints`; several are used in turns: `balance: round_robin`", ""},
	{"port", "5432", portNumber, Carried, "`endpoints`", ""},
	{"user", "", nil, Carried, "`user` of the upstream; without one `login_as: client`", "postgres.md#logging-in-as-the-client"},
	{"password", "", nil, Carried, "`password`, in a file or the environment: [see](#passwords)", ""},
	{"auth_user", "", nil, Carried, "`user` of an upstream for `auth_upstream`; one for all databases", ""},
	{"auth_query", "", nil, Carried, "`auth_query`; one for all databases", ""},
	{"auth_dbname", "", nil, Carried, "`dbname` of that upstream; one for all databases", ""},
	{"pool_size", "-1", unsetOrSize, Carried, "`pool.max_size`", ""},
	{"min_pool_size", "-1", unsetOrSize, Carried, "`pool.min_idle`, with `user=`", ""},
	{"reserve_pool", "-1", unsetOrSize, Carried, "as `reserve_pool_size`", ""},
	{"reserve_pool_size", "-1", unsetOrSize, Carried, "added to `pool.max_size`", ""},
	{"max_db_connections", "-1", unsetOrSize, Carried, "`postgres.max_connections`, or `max_size`", ""},
	{"max_db_client_connections", "-1", unsetOrSize, Carried, "`max_clients: {databases: …}`; not for `*`", ""},
	{"pool_mode", "", poolMode, Carried, "`mode` of the listener, if all databases have the same", ""},
	{"server_lifetime", "", size, Carried, "`pool.max_lifetime`", ""},
	{"query_wait_timeout", "-1", unsetOrSize, Carried, "`pool.acquire_timeout`", ""},
	{"load_balance_hosts", "round-robin", oneOf("disable", "round-robin"), Carried, "`balance: round_robin`; `disable` is `first`", ""},
	{"connect_query", "", nil, Carried, "`params`, if it is only `SET`", "postgres.md#settings-of-the-upstream"},
	{"client_encoding", "", nil, Carried, "`params`", ""},
	{"datestyle", "", nil, Carried, "`params`", ""},
	{"timezone", "", nil, Carried, "`params`", ""},
	{"application_name", "", nil, Carried, "`params`", ""},
}

// userKeys are the keys of a line in section [users].
var userKeys = []key{
	{"pool_mode", "", poolMode, Carried, "**not supported**, unless it is the `mode` of the listener", ""},
	{"pool_size", "-1", unsetOrSize, Missing, "`max_size` is for each user", ""},
	{"reserve_pool_size", "-1", unsetOrSize, Missing, "`max_size` is for each user", ""},
	{"max_user_connections", "-1", unsetOrSize, Missing, "on the server: `ALTER ROLE ROLE CONNECTION LIMIT N`", ""},
	{"max_user_client_connections", "-1", unsetOrSize, Carried, "`max_clients: {users: …}`", ""},
	{"query_timeout", "0", size, Missing, "on the server: `ALTER ROLE ROLE SET statement_timeout = 'Ns'`", ""},
	{"query_wait_timeout", "-1", unsetOrSize, Missing, "`acquire_timeout` is for all users", ""},
	{"idle_transaction_timeout", "0", size, Missing, "`ALTER ROLE ROLE SET idle_in_transaction_session_timeout = 'Ns'`", ""},
	{"transaction_timeout", "0", size, Missing, "PostgreSQL 17: `ALTER ROLE ROLE SET transaction_timeout = 'Ns'`", ""},
	{"client_idle_timeout", "0", size, Missing, "idle clients stay", ""},
}

// peerKeys are the keys of a line in section [peers], which is Missing if peers are on other machines.
var peerKeys = []key{
	{"host", "", nil, Carried, "not needed on one machine: one process uses all cores", ""},
	{"port", "6432", portNumber, Carried, "", ""},
	{"pool_size", "-1", unsetOrSize, Carried, "", ""},
}
