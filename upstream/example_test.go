package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"

	"github.com/headpond/headpond/upstream"
)

// The first of two endpoints is down: callers get a connection to the other one, and the second caller gets an open
// one.
func Example() {
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	go func() {
		for {
			c, err := backend.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()

	echo, err := upstream.New(upstream.Config[net.Conn]{
		Name:     "echo",
		Settings: upstream.Settings{Endpoints: upstream.Endpoints("first.test:7", backend.Addr().String()), Balance: upstream.First, Ejection: upstream.Ejection{Failures: 1}},
		Open: func(ctx context.Context, endpoint string) (net.Conn, error) {
			if endpoint == "first.test:7" {
				return nil, errors.New("it is down")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", endpoint)
		},
		Close:  func(c net.Conn) { c.Close() },
		Logger: slog.New(slog.DiscardHandler), // it would say that an endpoint is ejected, and why
	})
	if err != nil {
		log.Fatal(err)
	}
	defer echo.Drain(context.Background())

	for range 2 {
		lease, err := echo.Acquire(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprint(lease.Value(), "ping")
		answer := make([]byte, 4)
		if _, err := io.ReadFull(lease.Value(), answer); err != nil {
			lease.Fail(err) // closes the connection and counts against the endpoint
			log.Fatal(err)
		}
		fmt.Println(string(answer), "reused:", lease.Reused())
		lease.Release()
	}
	first := echo.Status().Endpoints[0]
	fmt.Println(first.Address, "ejected:", first.Ejected, "because", first.LastError)
	// Output:
	// ping reused: false
	// ping reused: true
	// first.test:7 ejected: true because it is down
}

// Two users share the endpoints of a database. Each has its own connections, which are logged in as that user; a wrong
// password is not held against the endpoint.
func ExampleUpstream_NewTenant() {
	db, err := upstream.New(upstream.Config[string]{
		Name:     "db",
		Settings: upstream.Settings{Endpoints: upstream.Endpoints("10.0.0.1:5432"), Ejection: upstream.Ejection{Failures: 1}},
		Try:      func(context.Context, string) error { return nil }, // without Open: there are connections of tenants only
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	for _, user := range []string{"alice", "mallory"} {
		tenant, err := db.NewTenant(upstream.TenantConfig[string]{
			Name: user,
			Open: func(_ context.Context, endpoint string) (string, error) {
				if user == "mallory" {
					return "", fmt.Errorf("wrong password: %w", upstream.ErrTenant)
				}
				return user + "'s connection to " + endpoint, nil
			},
			Close: func(string) {},
		})
		if err != nil {
			log.Fatal(err)
		}
		lease, err := tenant.Acquire(context.Background())
		if err != nil {
			fmt.Println(user, "is refused:", errors.Is(err, upstream.ErrTenant))
			continue
		}
		fmt.Println(lease.Value())
		lease.Release()
	}
	fmt.Println("ejected:", db.Status().Endpoints[0].Ejected)
	// Output:
	// alice's connection to 10.0.0.1:5432
	// mallory is refused: true
	// ejected: false
}
