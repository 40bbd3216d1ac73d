package config_test

import (
	"fmt"

	"github.com/headpond/headpond/gateway/config"
)

func Example() {
	_, problems := config.Parse("headpond.yaml", []byte(`listeners:
  - name: db
    protocol: postgres
    listen: 127.0.0.1:6432
    upstream: gp
upstreams:
  pg:
    endpoints: [127.0.0.1:5432]
    pool: {max_sise: 20}
    postgres: {user: app}
`))
	fmt.Print(problems)
	// Output:
	// headpond.yaml:5:15: listener "db": unknown upstream "gp"; did you mean "pg"?
	// headpond.yaml:7:3: warning: upstream "pg": no listener uses it
	// headpond.yaml:9:12: upstream "pg": unknown key "max_sise"; did you mean "max_size"?
}
