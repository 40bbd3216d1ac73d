module github.com/headpond/headpond/integration

go 1.27.2

// The core module comes from go.work: it is tested as it is here, never as released.
require github.com/jackc/pgx/v5 v5.12.0
