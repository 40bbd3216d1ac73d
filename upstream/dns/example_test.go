package dns_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/headpond/headpond/upstream"
	"github.com/headpond/headpond/upstream/dns"
)

// A name with two addresses is two endpoints.
func Example() {
	hosts, err := os.CreateTemp("", "hosts")
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(hosts.Name())
	fmt.Fprintln(hosts, "127.0.0.2 api.internal\n127.0.0.3 api.internal")
	hosts.Close()

	source, err := dns.New(dns.Config{Name: "api.internal:6443", Hosts: hosts.Name(), ResolvConf: filepath.Join(os.TempDir(), "none")})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	source.Watch(ctx, func(set []upstream.Endpoint, err error) error { // an Upstream calls this
		for _, e := range set {
			fmt.Println(e.Address)
		}
		cancel()
		return err
	})
	// Output:
	// 127.0.0.2:6443
	// 127.0.0.3:6443
}
