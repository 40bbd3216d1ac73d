package protocols_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/protocols"
)

// TestReadCatalogsValues has the key's values written as YAML has them: two look like booleans.
func TestReadCatalogsValues(t *testing.T) {
	for text, want := range map[string]protocols.ReadCatalogs{
		"": protocols.CatalogsEvident, "read_catalogs: evident": protocols.CatalogsEvident, "read_catalogs: false": protocols.CatalogsNever, "read_catalogs: true": protocols.CatalogsTrusted, "read_catalogs: hidden": protocols.CatalogsHidden,
		`read_catalogs: "true"`: protocols.CatalogsTrusted, "read_catalogs: hiden": "", "read_catalogs: yes": "",
	} {
		cfg, problems := config.Parse("file.yaml", fmt.Appendf(nil, `
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:6432", upstream: pg}
upstreams:
  pg: {endpoints: ["127.0.0.1:5432"], postgres: {user: app, %s}}
`, text))
		said := fmt.Sprint(problems)
		if want == "" {
			if !strings.Contains(said, "file.yaml:5:") || !strings.Contains(said, "hidden") {
				t.Errorf("%s: %s", text, said)
			}
			continue
		}
		if problems != nil {
			t.Errorf("%s: %s", text, said)
			continue
		}
		if got := config.PartOf[protocols.UpstreamKeys](&cfg.Upstreams[0]).Postgres.ReadCatalogs; got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
