package hba_test

import (
	"fmt"
	"net/netip"

	"github.com/headpond/headpond/pgproxy/hba"
)

func ExampleRules_Find() {
	rules, err := hba.Parse("pg_hba.conf", `
# TYPE    DATABASE  USER     ADDRESS        METHOD
local     all       all                     peer map=ops
hostssl   sameuser  all      10.0.0.0/8     cert
host      all       "all"    10.0.0.0/8     reject
`, nil)
	if err != nil {
		fmt.Println(err)
	}
	maps, err := hba.ParseMaps("pg_ident.conf", `ops /^(.*)_admin$ \1`)
	if err != nil {
		fmt.Println(err)
	}
	rule := rules.Find(&hba.Request{Local: true, Database: "shop", User: "ada"})
	fmt.Println(rule.Method, maps.Allow(rule.Map, "ada_admin", "ada"), maps.Allow(rule.Map, "ada", "ada"))
	rule = rules.Find(&hba.Request{Addr: netip.MustParseAddr("10.1.2.3"), TLS: true, Database: "ada", User: "ada"})
	fmt.Println(rule.Where, rule.Method)
	fmt.Println(rules.Find(&hba.Request{Addr: netip.MustParseAddr("10.1.2.3"), Database: "shop", User: "ada"}))
	// Output:
	// peer true false
	// pg_hba.conf:4 cert
	// <nil>
}
