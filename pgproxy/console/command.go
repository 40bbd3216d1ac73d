package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// emulated is the version of PgBouncer whose columns the console has.
const emulated = "1.25.2"

// command is a command other than SHOW and those of drivers.
type command struct {
	run func(s *session, b *Console, database string) (*result, error)
	// argument says whether a database, or the ID of a client, follows: never, perhaps or always.
	argument int
	// instead says what to do in place of a command that the console does not have.
	instead string
}

const (
	never = iota
	perhaps
	always
)

// commands are for admins.
var commands map[string]command

func init() { // not a literal: HELP, which the commands reach, lists them
	commands = map[string]command{
		"pause":       {run: (*session).pause, argument: perhaps},
		"resume":      {run: (*session).resume, argument: perhaps},
		"kill":        {run: (*session).kill, argument: perhaps},
		"kill_client": {run: (*session).killClient, argument: always},
		"reload":      {run: (*session).reload},
		"reconnect":   {argument: perhaps, instead: "PAUSE and RESUME close every connection to the servers."},
		"wait_close":  {argument: perhaps, instead: "PAUSE returns when every connection is closed."},
		"disable":     {argument: always, instead: "Remove the database from \"databases\" of the listener, and RELOAD."},
		"enable":      {argument: always, instead: "Add the database to \"databases\" of the listener, and RELOAD."},
		"suspend":     {instead: "PAUSE stops the use of the servers. A new process takes the listeners over without it."},
		"shutdown":    {argument: perhaps, instead: "Stop the process: SIGTERM lets clients finish their transactions within drain_timeout."},
	}
}

// live returns the Console whose configuration is in force, and what the user may do. Once the configuration has no console,
// or not for this user, it ends the session.
func (s *session) live() (*Console, role, error) {
	if b, ok := s.c.Current().(*Console); ok {
		if r := b.role(s.c.User); r != nobody {
			return b, r, nil
		}
	}
	s.c.Logger().Warn("console session ended: the configuration has changed")
	if err := s.c.Fatal(pgwire.StateAdminShutdown, "the configuration no longer has this console for you", ""); err != nil {
		return nil, nobody, err
	}
	return nil, nobody, errOver
}

// run runs a command. A *commandError is for the client, any other error ends the session.
func (s *session) run(st *statement) (*result, error) {
	if err := s.stopped(); err != nil {
		return nil, err
	}
	b, r, err := s.live()
	if err != nil {
		return nil, err
	}
	s.c.Working()
	defer s.c.Done()
	if t := showOf(st); t != nil {
		return s.show(b, t)
	}
	if st.word(0) == "show" && st.word(1) == "fds" {
		return nil, failed(pgwire.StateFeatureNotSupported, "SHOW CLIENTS and SHOW SERVERS list the connections.", "SHOW FDS is not supported: it is for PgBouncer's own restart")
	}
	if r, err := s.prelude(st); r != nil || err != nil {
		return r, err
	}
	cmd, ok := commands[st.word(0)]
	if !ok {
		return nil, st.unknown()
	}
	argument, ok := st.argument()
	if !ok || cmd.argument == never && argument != "" {
		return nil, st.unknown()
	}
	return s.act(b, r, st, cmd, argument)
}

// act runs a command of admins, and logs it.
func (s *session) act(b *Console, r role, st *statement, cmd command, argument string) (*result, error) {
	log := s.c.Logger().With("command", st.text)
	if r != admin {
		log.Warn("console command refused")
		return nil, failed(pgwire.StateInsufficientPrivilege, "The user is not in admins of the listener's console.", "admin access needed")
	}
	if cmd.run == nil {
		return nil, failed(pgwire.StateFeatureNotSupported, cmd.instead, "%s is not supported", strings.ToUpper(st.word(0)))
	}
	if cmd.argument == always && argument == "" {
		return nil, failed(pgwire.StateSyntaxError, helpHint, "%s needs an argument", strings.ToUpper(st.word(0)))
	}
	log.Info("console command")
	res, err := cmd.run(s, b, argument)
	if err != nil {
		log.Warn("console command failed", "error", err)
		return nil, err
	}
	res.tag = strings.ToUpper(st.word(0))
	s.limitSend()
	return res, nil
}

// show runs a SHOW off the loop.
func (s *session) show(b *Console, t *table) (*result, error) {
	r := &result{columns: t.columns, tag: "SHOW"}
	fiber.Block(func() {
		v := &view{Console: b, State: b.cfg.Gateway.State()}
		v.byName = v.index()
		t.fill(v, r)
	})
	return r, nil
}

// describe returns the columns of a command without running it, nil if it has none. It returns an error for a command that
// does not exist.
func describe(st *statement) (*result, error) {
	if t := showOf(st); t != nil {
		if t.columns == nil {
			return nil, nil //nolint:nilnil // as the comment says
		}
		return &result{columns: t.columns}, nil
	}
	if r := selected(st); r != nil {
		return r, nil
	}
	if _, ok := commands[st.word(0)]; !ok && !isPrelude(st.word(0)) && st.word(1) != "fds" {
		return nil, st.unknown()
	}
	return nil, nil //nolint:nilnil // as the comment says
}

// settings are the settings of PostgreSQL that drivers set at the beginning; here they have no effect.
var settings = map[string]string{
	"client_encoding": "UTF8", "default_transaction_isolation": "read committed", "standard_conforming_strings": "on", "datestyle": "ISO",
	"timezone": "GMT", "extra_float_digits": "2", "application_name": "", "client_min_messages": "notice", "statement_timeout": "0",
	"lock_timeout": "0", "idle_in_transaction_session_timeout": "0", "search_path": "", "intervalstyle": "postgres", "bytea_output": "hex",
	"default_transaction_read_only": "off", "transaction_isolation": "read committed",
}

// preludes are the first words of commands that drivers send by themselves.
var preludes = []string{"set", "reset", "discard", "deallocate", "select", "begin", "start", "commit", "rollback", "end", "abort"}

func isPrelude(word string) bool { return slices.Contains(preludes, word) }

// prelude answers the commands that drivers send by themselves. It returns nil for others.
func (s *session) prelude(st *statement) (*result, error) {
	switch st.word(0) {
	case "select":
		if r := selected(st); r != nil {
			return r, nil
		}
		return nil, st.unknown()
	case "set":
		return set(st)
	case "reset", "discard", "deallocate":
		if len(st.tokens) != 2 || st.word(1) != "all" {
			return nil, st.unknown()
		}
		tag := strings.ToUpper(st.word(0))
		if tag != "RESET" {
			clear(s.statements)
			tag += " ALL"
		}
		return &result{tag: tag}, nil
	case "begin", "start", "commit", "rollback", "end", "abort":
		return nil, failed(pgwire.StateFeatureNotSupported, "Have the driver use autocommit.", "the console has no transactions")
	}
	return nil, nil //nolint:nilnil // as the comment says
}

// selected answers SELECT 1 and SELECT version(), with which drivers test a connection. It returns nil for others.
func selected(st *statement) *result {
	if st.word(0) != "select" {
		return nil
	}
	var text strings.Builder
	for _, t := range st.tokens[1:] {
		text.WriteString(strings.ToLower(t.text))
	}
	switch text.String() {
	case "1":
		return &result{columns: columns(typeInt4, "?column?"), rows: []row{{1}}, tag: "SELECT 1"}
	case "version()", "pg_catalog.version()":
		return &result{columns: columns(typeText, "version"), rows: []row{{"PgBouncer " + emulated + " (Headpond)"}}, tag: "SELECT 1"}
	}
	return nil
}

// set accepts, without an effect, the settings that drivers make.
func set(st *statement) (*result, error) {
	at := 1
	if w := st.word(at); w == "session" || w == "local" {
		at++
	}
	name := st.word(at)
	_, known := settings[name]
	known = known || name == "characteristics" || name == "names" || name == "time" && st.word(at+1) == "zone"
	switch {
	case name == "" || len(st.tokens) < at+2:
		return nil, st.unknown()
	case !known:
		return nil, failed(pgwire.StateFeatureNotSupported, "Change the configuration file, and RELOAD.", "the console sets nothing: %q cannot be changed here", clip(name))
	}
	r := &result{tag: "SET"}
	r.notice("SET ignored", "")
	return r, nil
}

// await runs an action that may wait for a reload or the end of the gateway. The session does not wait for it any longer
// after a cancel request, or once it has to end: a drain, which the action may wait for, waits for the session. The action
// goes on; if it succeeds then, abandoned is called, unless it is nil.
func (s *session) await(action func() error, abandoned func()) (err error) {
	fiber.Block(func() {
		done := make(chan error, 1)
		go func() { done <- action() }() // ends with the reload or drain that it waits for
		select {
		case err = <-done:
			return
		case <-s.c.Draining():
			err = pgproxy.ErrDraining
		case <-s.ctx.Done():
			err = context.Cause(s.ctx)
		case <-s.cancel:
			err = errCanceled
		}
		if abandoned != nil {
			go func() { // likewise
				if <-done == nil {
					abandoned()
				}
			}()
		}
	})
	return err
}

// ending reports whether an error ends the session.
func ending(err error) bool {
	_, ok := errors.AsType[*commandError](err)
	return !ok
}

// refused returns the error of an action for the client, unless it ends the session.
func (s *session) refused(err error) error {
	if errors.Is(err, pgproxy.ErrDraining) || s.ctx.Err() != nil || !ending(err) {
		return err
	}
	return failed(pgwire.StateNotInPrerequisiteState, "", "%s", clip(fmt.Sprint(err)))
}
