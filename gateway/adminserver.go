package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
)

// Limits of the admin page: its clients are browsers and scrapers, none of which sends much.
const (
	adminHeaderTimeout = 5 * time.Second
	adminReadTimeout   = 10 * time.Second
	adminWriteTimeout  = 30 * time.Second // a reload answers when it is done
	adminIdleTimeout   = 2 * time.Minute
	adminHeaderBytes   = 16 << 10
)

// adminServer is the admin page on its socket.
type adminServer struct {
	socket *socket
	http   *http.Server
}

// newAdmin makes the admin page; nothing is served until startAdmin.
func (g *Gateway) newAdmin(sock *socket, listen string) (*adminServer, error) {
	local := config.Loopback(listen)
	cfg := admin.Config{Snapshot: g.Snapshot, Sessions: g.Sessions, Alive: g.Alive, LocalOnly: local, Logger: g.logger}
	if local {
		cfg.Reload = func(context.Context) error { return g.ReloadFile() }
		cfg.Kill = g.Kill
		cfg.ChangeEndpoint = g.ChangeEndpoint
		cfg.Pause, cfg.Resume = g.PauseUpstream, g.ResumeUpstream
		cfg.Profile = true
	}
	if local && sock.Addr().Network() == "unix" {
		cfg.LocalOnly = false // clients of the socket are on this machine; their Host says nothing
	}
	handler, err := admin.New(cfg)
	if err != nil {
		return nil, err
	}
	return &adminServer{sock, &http.Server{
		Handler: handler, ReadHeaderTimeout: adminHeaderTimeout, ReadTimeout: adminReadTimeout, WriteTimeout: adminWriteTimeout,
		IdleTimeout: adminIdleTimeout, MaxHeaderBytes: adminHeaderBytes,
		ErrorLog: slog.NewLogLogger(g.logger.Handler(), slog.LevelDebug),
	}}, nil
}

func (g *Gateway) startAdmin(a *adminServer) {
	l := g.spare.listen(a.socket, func(short bool) { a.http.SetKeepAlivesEnabled(!short) }) // idle clients give up their descriptor
	g.logger.Info("admin page", "address", address(a.socket))
	g.tasks.Go(func() {
		if err := a.http.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) && !a.socket.retired.Load() {
			g.logger.Error("admin page stopped", "address", address(a.socket), "error", err)
		}
	})
}

// adminGrace is how long answers of the admin page may take to be finished.
const adminGrace = time.Second

// close lets the answers under way finish and ends the page. The page may also never have been served.
func (a *adminServer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), adminGrace)
	defer cancel()
	a.socket.retired.Store(true)
	if a.http.Shutdown(ctx) != nil {
		_ = a.http.Close()
	}
	a.socket.retire()
}
