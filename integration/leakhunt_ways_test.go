package integration

import (
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// way is what happens between making session state and looking at it.
type way struct {
	name  string
	stays bool                  // the client stays and looks again; otherwise do ends it
	do    func(p *player) error // what happens to the client, or what it does
	other step                  // action of another client while the client stays; nil = look for the state
	only  string                // the kind of target this is for; "" = each
}

// says runs a step and drops its answer.
func says(s step) func(p *player) error {
	return func(p *player) error { s(p); return nil }
}

var nothing = says(func(*player) string { return "" })

// stayingWays are the ways in which the client stays connected. The first one does nothing.
func stayingWays() []way {
	ways := []way{
		{name: "other-client", do: nothing},
		{name: "other-makes-the-same", do: nothing, other: func(p *player) string { return p.kind.rival(p) }},
		{name: "other-discards-all", do: nothing, other: queries("discard all")},
		{name: "after-commit", do: says(queries("begin", "select 1", "commit"))},
		{name: "after-rollback", do: says(queries("begin", "select 1/0", "rollback"))},
		{name: "after-error", do: says(queries("select 1/0"))},
		{name: "after-pipeline", do: pipeline},
		{name: "after-copy", do: copies},
		{name: "after-cancel", do: canceled},
		{name: "own-discard-all", do: says(queries("discard all"))},
		{name: "own-reset-all", do: says(queries("reset all"))},
		{name: "server-connection-killed", do: func(p *player) error { return p.hunter.killServerConnections(p.kind) }},
	}
	for i := range ways {
		ways[i].stays = true
	}
	return ways
}

// leavingWays are the ways in which the client disconnects.
func leavingWays() []way {
	return []way{
		{name: "terminate", do: func(p *player) error { p.terminate(); return nil }},
		{name: "terminate-in-transaction", do: after((*wireClient).terminate, queries("begin", "select 1"))},
		{name: "terminate-in-failed-transaction", do: after((*wireClient).terminate, queries("begin", "select 1/0"))},
		{name: "close", do: after((*wireClient).close)},
		{name: "reset", do: after((*wireClient).reset)},
		{name: "reset-in-transaction", do: after((*wireClient).reset, queries("begin", "select 1"))},
		{name: "reset-in-query", do: resetInQuery},
		{name: "reset-in-copy-in", do: after((*wireClient).reset, copyingIn)},
		{name: "reset-in-copy-out", do: after((*wireClient).reset, copyingOut)},
		{name: "reset-in-pipeline", do: after((*wireClient).reset, unsynced("select 1", &pgproto3.DataRow{}))},
		{name: "reset-in-failed-pipeline", do: after((*wireClient).reset, unsynced("select 1/0", &pgproto3.ErrorResponse{}))},
		{name: "reset-in-message", do: resetInMessage},
		{name: "cancel-and-terminate", do: cancelAndTerminate},
		{name: "killed-by-operator", do: func(p *player) error { return p.hunter.target.kill(p) }, only: "headpond"},
	}
}

// after runs steps and then ends the client.
func after(end func(*wireClient), steps ...step) func(p *player) error {
	return func(p *player) error {
		for _, s := range steps {
			s(p)
		}
		end(p.wireClient)
		return nil
	}
}

// pipeline sends three parts in one write; the second fails.
func pipeline(p *player) error {
	for _, sql := range []string{"select 1", "select 1/0", "select 2"} {
		p.sendExtended(sql)
		p.sendExtended(sql)
		p.Send(&pgproto3.Sync{})
	}
	for range 3 {
		p.answer()
	}
	return nil
}

// copies fails a COPY of its own data and reads some of the server's.
func copies(p *player) error {
	p.Send(&pgproto3.Query{String: "copy public.hunt_sink from stdin"})
	p.Send(&pgproto3.CopyData{Data: []byte("x\n")})
	p.Send(&pgproto3.CopyFail{Message: "enough"})
	p.answer()
	p.query("copy (select generate_series(1, 100)) to stdout")
	return nil
}

// canceled cancels a statement. A request may arrive before the statement, so it is repeated, like a person's Ctrl-C.
func canceled(p *player) error {
	done := make(chan string, 1)
	go func() { done <- p.query("select pg_sleep(30)") }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
			if err := p.cancel(p.addr); err != nil {
				return err
			}
		}
	}
}

// running sends a statement that takes a second and waits until the server runs it.
func running(p *player) error {
	p.Send(&pgproto3.Query{String: "select pg_sleep(1)"})
	if err := p.Flush(); err != nil {
		return err
	}
	return p.hunter.awaitRunning(p.kind)
}

func resetInQuery(p *player) error {
	err := running(p)
	p.reset()
	return err
}

func cancelAndTerminate(p *player) error {
	if err := running(p); err != nil {
		return err
	}
	err := p.cancel(p.addr)
	p.terminate()
	return err
}

func copyingIn(p *player) string {
	p.Send(&pgproto3.Query{String: "copy public.hunt_sink from stdin"})
	said := p.receiveType(&pgproto3.CopyInResponse{})
	p.Send(&pgproto3.CopyData{Data: []byte("x\n")})
	_ = p.Flush()
	return said
}

// copyingOut disconnects while more data is to come than all buffers hold.
func copyingOut(p *player) string {
	p.Send(&pgproto3.Query{String: "copy (select repeat('x', 100000) from generate_series(1, 2000)) to stdout"})
	return p.receiveType(&pgproto3.CopyData{})
}

// unsynced runs a statement in the extended protocol up to a message, without Sync.
func unsynced(sql string, until pgproto3.BackendMessage) step {
	return func(p *player) string {
		p.sendExtended(sql)
		p.Send(&pgproto3.Flush{})
		return p.receiveType(until)
	}
}

func resetInMessage(p *player) error {
	_, err := p.conn.Write([]byte("Q\x00\x00\x00\x64select"))
	p.reset()
	return err
}
