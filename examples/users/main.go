// Command users is a complete service on package route: users in a SQLite file, by JSON, with a page to try
// it. Run it, then open http://127.0.0.1:9001/docs:
//
//	go run ./examples/users -db users.db
//	curl --json '{"name":"Ada","email":"ada@example.com","age":36}' http://127.0.0.1:9001/api/users
//	curl http://127.0.0.1:9001/api/users
//
// examples/http.yaml has a gateway before backends at this address.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/headpond/headpond/route"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9001", "address to serve at")
	path := flag.String("db", "users.db", "SQLite file; it is created when there is none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ln, err := net.Listen("tcp", *listen)
	if err == nil {
		err = run(ctx, ln, *path)
	}
	if err != nil {
		slog.Error("users ends", "err", err)
		os.Exit(1) //nolint:gocritic // stop only gives signals back to the runtime
	}
}

// run serves until ctx is done, and then completes running requests. It closes ln.
func run(ctx context.Context, ln net.Listener, path string) error {
	defer ln.Close()
	users, err := openStore(ctx, path)
	if err != nil {
		return err
	}
	defer users.close()
	server := &http.Server{
		Handler:           newHandler(users),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second, // the slowest client
		IdleTimeout:       2 * time.Minute,
	}
	slog.Info("users serves", "address", ln.Addr().String(), "db", path)
	stopped := make(chan error, 1)
	go shutDown(ctx, server, stopped)
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// shutDown ends the server when ctx is done.
func shutDown(ctx context.Context, server *http.Server, stopped chan<- error) {
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	stopped <- server.Shutdown(ctx)
}

// newHandler returns the service.
func newHandler(users *store) http.Handler {
	mux := http.NewServeMux()
	api := route.NewAPI(mux, route.Info{Title: "Users", Version: "1.0.0", Description: "Users in a SQLite file."},
		route.MapError(problemOf), route.Tags("users"), route.RefuseUnknown(), route.BodyTimeout(10*time.Second))
	route.Handle(api, "POST /api/users", users.create, route.Summary("Create a user"), route.Errors(http.StatusConflict))
	route.Handle(api, "GET /api/users", users.list, route.Summary("List users, in the order of their ids"), route.ETag())
	route.Handle(api, "GET /api/users/{id}", users.get, route.Summary("Get a user"), route.ETag(), route.Errors(http.StatusNotFound))
	route.Handle(api, "PATCH /api/users/{id}", users.update, route.Summary("Change a user", "Absent fields keep their values."), route.Errors(http.StatusNotFound, http.StatusConflict))
	route.Handle(api, "DELETE /api/users/{id}", users.remove, route.Summary("Delete a user"), route.Errors(http.StatusNotFound))
	route.Handle(api, "GET /api/users.csv", users.export, route.Summary("Export all users"), route.Produces("text/csv"))
	route.Handle(mux, "GET /healthz", func(c *route.Ctx, _ struct{}) (health, error) { return users.health(c.Context()) })
	api.ServeDocs("/docs")
	return route.Problems(mux)
}
