package console

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// pausePoll is how often a PAUSE looks whether all connections are closed.
const pausePoll = 50 * time.Millisecond

// target is an upstream that a command is for.
type target struct {
	name     string
	pausable bool
	paused   bool
	open     int // connections
}

// targets returns the upstreams of a database, or of all databases.
func (b *Console) targets(database string) (list []target, err error) {
	var state State
	fiber.Block(func() { state = b.cfg.Gateway.State() })
	databases := state.Databases
	if database != "" {
		d := find(state.index(), database)
		switch {
		case database == b.cfg.Database:
			return nil, failed(pgwire.StateFeatureNotSupported, "", "%q is the console itself", clip(database))
		case d == nil:
			return nil, failed(pgwire.StateInvalidCatalogName, "SHOW DATABASES lists them.", "no such database: %s", clip(database))
		}
		databases = []Database{*d}
	}
	seen := map[string]bool{}
	for i := range databases {
		if u := &databases[i].Upstream; !seen[u.Name] {
			seen[u.Name] = true
			list = append(list, target{u.Name, databases[i].Pausable, !u.PausedUntil.IsZero(), connections(u)})
		}
	}
	return list, nil
}

// pause stops the use of servers, and waits until no connection to them is left. If the wait ends before that, by a cancel
// request or because the client leaves, the request is taken back.
func (s *session) pause(b *Console, database string) (*result, error) {
	list, err := b.targets(database)
	if err != nil {
		return nil, err
	}
	if database == "" && allPaused(list) {
		return nil, failed(pgwire.StateNotInPrerequisiteState, "RESUME ends the pause.", "already suspended/paused")
	}
	r := &result{}
	undo, err := s.beginPause(b, list, r)
	for err == nil {
		if list, err = b.targets(database); err != nil {
			break
		}
		list = slices.DeleteFunc(list, func(t target) bool { return !t.pausable })
		switch {
		case slices.ContainsFunc(list, func(t target) bool { return !t.paused }):
			err = failed(pgwire.StateNotInPrerequisiteState, "", "the pause was ended before all connections were closed")
		case !slices.ContainsFunc(list, func(t target) bool { return t.open > 0 }):
			return r, nil
		default:
			if err = s.interrupted(); err == nil {
				fiber.Sleep(pausePoll)
			}
		}
	}
	for _, f := range undo {
		_ = s.await(func() error { f(); return nil }, nil)
	}
	return nil, err
}

// allPaused reports whether upstreams can be paused, and all of them are.
func allPaused(list []target) bool {
	pausable := func(t target) bool { return t.pausable }
	return slices.ContainsFunc(list, pausable) && !slices.ContainsFunc(list, func(t target) bool { return t.pausable && !t.paused })
}

// beginPause pauses upstreams. undo takes that back, also if there is an error.
func (s *session) beginPause(b *Console, list []target, r *result) (undo []func(), err error) {
	for _, t := range list {
		if !t.pausable && len(list) > 1 {
			r.notice(fmt.Sprintf("upstream %q is a SQLite file, which cannot be paused", t.name), "")
			continue
		}
		var back func()
		err := s.await(func() (err error) {
			back, err = b.cfg.Gateway.Pause(t.name, upstream.MaxPause)
			return err
		}, func() { back() })
		if err != nil {
			return undo, s.refused(err)
		}
		undo = append(undo, back)
	}
	return undo, nil
}

// interrupted returns an error once a command that waits has to end.
func (s *session) interrupted() error {
	if err := context.Cause(s.ctx); err != nil {
		return err
	}
	select {
	case <-s.c.Draining():
		return pgproxy.ErrDraining
	case <-s.cancel:
		return errCanceled
	default:
		return nil
	}
}

// resume ends pauses.
func (s *session) resume(b *Console, database string) (*result, error) {
	list, err := b.targets(database)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(t target) bool { return !t.paused })
	if len(list) == 0 && database != "" {
		return nil, failed(pgwire.StateNotInPrerequisiteState, "", "database %s is not paused", clip(database))
	} else if len(list) == 0 {
		return nil, failed(pgwire.StateNotInPrerequisiteState, "", "no database is paused")
	}
	for _, t := range list {
		if err := s.await(func() error { return b.cfg.Gateway.Resume(t.name) }, nil); err != nil {
			return nil, s.refused(err)
		}
	}
	return &result{}, nil
}

// kill pauses databases, and ends the sessions of their clients without waiting.
func (s *session) kill(b *Console, database string) (*result, error) {
	list, err := b.targets(database)
	if err != nil {
		return nil, err
	}
	r := &result{}
	if _, err := s.beginPause(b, list, r); err != nil {
		return nil, err
	}
	fiber.Block(func() {
		for _, info := range b.cfg.Gateway.Sessions() {
			if started(&info) && info.Database != b.cfg.Database && (database == "" || info.Database == database) {
				b.cfg.Gateway.Kill(info.ID)
			}
		}
	})
	return r, nil
}

// killClient ends the session with an ID of SHOW CLIENTS.
func (s *session) killClient(b *Console, id string) (*result, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n <= 0 {
		return nil, failed(pgwire.StateSyntaxError, "SHOW CLIENTS has the id of each client.", "invalid client id %q", clip(id))
	}
	found := false
	fiber.Block(func() {
		name := listener.ID(n).String()
		found = slices.ContainsFunc(b.cfg.Gateway.Sessions(), func(info listener.Info) bool { return info.ID == name }) && b.cfg.Gateway.Kill(name)
	})
	if !found {
		return nil, failed(pgwire.StateUndefinedObject, "SHOW CLIENTS has the id of each client.", "client not found")
	}
	return &result{}, nil
}

// reload applies the configuration file. The log has the reasons of an error: they quote the file.
func (s *session) reload(b *Console, _ string) (*result, error) {
	err := s.await(b.cfg.Gateway.Reload, nil)
	switch {
	case err == nil:
		return &result{}, nil
	case err == errCanceled: //nolint:errorlint // as await returned it
		return nil, failed(pgwire.StateQueryCanceled, "", "canceled the wait for RELOAD, which continues")
	case ending(s.refused(err)):
		return nil, err
	}
	return nil, failed("F0000", "", "RELOAD failed, the old configuration is in force; see the log for details")
}

// started reports whether a session has a user and a database.
func started(info *listener.Info) bool {
	return info.State != listener.StateQueued && info.State != listener.StateStarting
}

// helpText lists the commands.
func helpText() string {
	return "\n\t" + strings.Join([]string{
		"SHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION",
		"SHOW PEERS|PEER_POOLS", "SHOW SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE", "SHOW DNS_HOSTS|DNS_ZONES",
		"SHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS",
		"RELOAD", "PAUSE [<db>]", "RESUME [<db>]", "KILL [<db>]", "KILL_CLIENT <client_id>",
	}, "\n\t")
}
