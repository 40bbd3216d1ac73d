//go:build unix && storm

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/upstream"
)

// operate does random things until the clients have ended.
func (s *storm) operate() {
	actions := []func(){s.reload, s.reload, s.reload, s.kill, s.kill, s.terminate, s.terminate, s.crash, s.hang, s.pause, s.consolePause, s.consoleKill, s.changeEndpoint, s.changePassword}
	for {
		select {
		case <-s.calm:
			return
		case <-time.After(time.Duration(s.r.IntN(120)) * time.Millisecond):
		}
		actions[s.r.IntN(len(actions))]()
	}
}

// restore ends all that may keep clients from being served.
func (s *storm) restore() {
	_ = s.gw.ResumeUpstream("pg")
	n, _ := s.current()
	n.clientIdle = "never"
	s.apply(n)
}

// allowFor makes the SQLSTATEs possible that settings ask for.
func (s *storm) allowFor(n stormSettings) {
	if strings.Contains(n.params, "statement_timeout") {
		s.allow("timeout")
	}
	if strings.Contains(n.params, "idle") {
		s.allow("25P03")
	}
	if n.clientIdle != "never" {
		s.allow("57P05")
	}
}

// apply reloads.
func (s *storm) apply(n stormSettings) {
	s.allowFor(n)
	s.mu.Lock()
	before := s.settings
	s.settings = n
	s.reloads++
	if before.state != "pin" || n.state != "pin" {
		s.unpinned = s.reloads + 1
	}
	s.mu.Unlock()
	s.note("reload %+v", n)
	if err := s.gw.Reload(parse(s.t, s.text(n))); err != nil {
		s.failed("reload: %v", err)
	}
	s.mu.Lock()
	s.reloads++
	s.mu.Unlock()
	s.note("reloaded")
}

func (s *storm) reload() {
	n, _ := s.current()
	other := s.newSettings()
	switch s.r.IntN(8) {
	case 0:
		n = other
	case 1:
		n.size, n.minIdle = other.size, other.minIdle
	case 2:
		n.endpoints = other.endpoints
	case 3:
		n.params = other.params
	case 4:
		n.mode = other.mode
	case 5:
		n.state, n.pinned, n.alsoPins = other.state, other.pinned, other.alsoPins
	case 6:
		n.clientIdle, n.perUser, n.perDatabase, n.acquire = other.clientIdle, other.perUser, other.perDatabase, other.acquire
	case 7:
		n.lifetime, n.catalogs, n.health, n.most = other.lifetime, other.catalogs, other.health, other.most
	}
	s.apply(n)
}

// kill is ctl kill.
func (s *storm) kill() {
	for i, session := range s.gw.Sessions() {
		if i == s.r.IntN(4) {
			s.note("kill %s %s", session.ID, session.Application)
			s.allow("kill")
			s.gw.Kill(session.ID)
			return
		}
	}
}

// serverProcess returns the process of one of the gateway's server connections, 0 if there is none.
func (s *storm) serverProcess() (pid int) {
	s.direct(func(conn *pgx.Conn) error {
		err := conn.QueryRow(context.Background(), "select pid from pg_stat_activity where usename like 'storm%' and application_name <> 'direct' and backend_type = 'client backend' order by random() limit 1").Scan(&pid)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return pid
}

func (s *storm) terminate() {
	if pid := s.serverProcess(); pid != 0 {
		s.note("terminate %d", pid)
		s.direct(func(conn *pgx.Conn) error {
			_, err := conn.Exec(context.Background(), "select pg_terminate_backend($1)", pid)
			return err
		})
	}
}

// crash kills a process of the server, which restarts.
func (s *storm) crash() {
	if s.chance(2) {
		return
	}
	if pid := s.serverProcess(); pid != 0 {
		s.note("crash %d", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// hang stops a process of the server for some time.
func (s *storm) hang() {
	if pid := s.serverProcess(); pid != 0 {
		s.note("stop %d", pid)
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		wait(time.Duration(s.r.IntN(800)) * time.Millisecond)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		s.note("continue %d", pid)
	}
}

func (s *storm) pause() {
	s.note("pause")
	if err := s.gw.PauseUpstream("pg", time.Minute); err != nil {
		s.failed("pause: %v", err)
	}
	wait(time.Duration(s.r.IntN(200)) * time.Millisecond)
	if s.chance(3) {
		s.reload()
	}
	if err := s.gw.ResumeUpstream("pg"); err != nil {
		s.failed("resume: %v", err)
	}
	s.note("resumed")
}

// console runs commands there, and returns the error.
func (s *storm) console(ctx context.Context, commands ...string) error {
	mode := "disable"
	if s.fixed.clientTLS {
		mode = "require"
	}
	s.accepted.Add(1)
	host, port, _ := net.SplitHostPort(s.fixed.listen)
	conn, err := pgconn.Connect(context.Background(), fmt.Sprintf("host=%s port=%s user=admin password=pw dbname=pgbouncer sslmode=%s", host, port, mode))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, command := range commands {
		s.note("console: %s", command)
		cancels := context.AfterFunc(ctx, func() {
			s.accepted.Add(1)
			if err := conn.CancelRequest(context.Background()); err != nil {
				s.failed("cancel at the console: %v", err)
			}
		})
		_, err = conn.Exec(context.Background(), command).ReadAll()
		cancels()
		if err != nil {
			return err
		}
	}
	return nil
}

// consolePause pauses until all is idle, or for some time, and resumes.
func (s *storm) consolePause() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(100+s.r.IntN(500))*time.Millisecond)
	err := s.console(ctx, oneOf(s.r, "pause", "pause postgres", "show pools", "show clients", "show servers", "show stats", "reconnect", "disable postgres"))
	if e, ok := errors.AsType[*pgconn.PgError](err); err != nil && ctx.Err() == nil && (!ok || e.Code != "0A000") {
		s.failed("console: %v", err)
	}
	cancel()
	s.note("resume: %v", s.gw.ResumeUpstream("pg"))
}

func (s *storm) consoleKill() {
	if s.chance(2) {
		return
	}
	s.allow("kill")
	ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
	defer cancel()
	if err := s.console(ctx, oneOf(s.r, "kill", "kill other"), "resume"); err != nil {
		s.failed("console: %v", err)
	}
}

func (s *storm) changeEndpoint() {
	address := s.db.Addr()
	action := oneOf(s.r, upstream.DrainEndpoint, upstream.RemoveEndpoint)
	extra := "127.0.0.1:" + fmt.Sprint(s.db.Port())
	if !s.fixed.serverTLS {
		extra = s.db.SocketAddr()
	}
	s.note("%s %s: %v", upstream.AddEndpoint, extra, s.gw.ChangeEndpoint("pg", upstream.Change{Action: upstream.AddEndpoint, Endpoint: upstream.Endpoint{Address: extra}}))
	s.note("%s %s: %v", action, address, s.gw.ChangeEndpoint("pg", upstream.Change{Action: action, Endpoint: upstream.Endpoint{Address: address}}))
	wait(time.Duration(s.r.IntN(200)) * time.Millisecond)
	if s.chance(2) {
		s.note("back: %v", s.gw.ChangeEndpoint("pg", upstream.Change{Action: upstream.AddEndpoint, Endpoint: upstream.Endpoint{Address: address}}))
	}
}

// changePassword changes the password of a role of the server, and changes it back.
func (s *storm) changePassword() {
	role := "storm_app"
	if s.fixed.auth != "one" {
		role = fmt.Sprint("storm", s.r.IntN(stormUsers))
	}
	s.allow("28P01")
	for _, password := range []string{"other", "pw"} {
		s.note("%s has password %s", role, password)
		s.direct(func(conn *pgx.Conn) error {
			_, err := conn.Exec(context.Background(), fmt.Sprintf("alter role %s password '%s'", role, password))
			return err
		})
		wait(time.Duration(s.r.IntN(150)) * time.Millisecond)
	}
}
