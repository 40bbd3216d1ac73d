package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/internal/pgtest"
)

func TestPostgresBadInput(t *testing.T) {
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db := newDatabase(t, server, "bad")
	listen := address(t)
	g := startGateway(t, db.pgConfig(t, listen, "transaction", "max_size: 3, acquire_timeout: 30s"), verbose)
	bystander := startBystander(t, query(db.dsn(listen)))
	bystander.awaitMore(t, 10)
	good := db.dsn(listen)
	check(t, g, "db", bystander, []badInput{
		{"wrong password", times(refused(strings.Replace(good, db.password, "wrong", 1), "28P01", "password authentication failed")),
			"auth_failed", []string{"28P01", `user=bad`}},
		{"unknown user", times(refused(strings.Replace(good, "bad:", "mallory:", 1), "28P01", `"mallory"`)),
			"auth_failed", []string{"28P01", "user=mallory"}},
		{"unknown database", times(refused(strings.Replace(good, "/bad?", "/nowhere?", 1), "3D000", `database "nowhere" does not exist`)),
			"unknown_database", []string{"3D000", "nowhere"}},
		{"oversized start-up packet", times(garbage(listen, startup(1<<30, 196608, "user\x00bad\x00\x00"), "08P01")),
			"protocol_error", []string{"08P01", "start-up"}},
		{"negative length", times(garbage(listen, startup(0xffffffff, 196608, ""), "08P01")),
			"protocol_error", []string{"08P01", "start-up"}},
		{"truncated start-up packet", times(garbage(listen, startup(100, 196608, "user\x00"), "08P01")),
			"protocol_error", []string{"08P01", "start-up"}},
		{"start-up packet without a user", times(garbage(listen, startup(9, 196608, "\x00"), "28000")),
			"protocol_error", []string{"28000"}},
		{"an HTTP request", times(garbage(listen, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "08P01")),
			"protocol_error", []string{"08P01", "start-up"}},
		{"an unknown message after login", times(afterLogin(good, []byte{'?', 0, 0, 0, 4}, "08P01")),
			"protocol_error", []string{"session ended"}},
		{"an oversized message after login", times(afterLogin(good, []byte{'Q', 0x7f, 0xff, 0xff, 0xff}, "08P01")),
			"protocol_error", []string{"session ended"}},
		{"client gone in mid-transfer", times(vanish(good)), "client_gone", []string{"client gone"}},
	})
	eventually(t, "no query of a vanished client runs on", func() error {
		var n int
		err := server.Connect(t).QueryRow(t.Context(),
			"select count(*) from pg_stat_activity where usename = 'bad' and state = 'active'").Scan(&n)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d are active", n)
		}
		return err
	})
}

// refused connects and expects an error with the SQLSTATE and the words.
func refused(dsn, state, message string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			_ = conn.Close(ctx)
			t.Fatal("the connection was accepted")
		}
		if e := wantState(t, err, state); !strings.Contains(e.Message, message) {
			t.Errorf("message %q, want %q in it", e.Message, message)
		}
	}
}

// startup makes a startup packet with the given length field.
func startup(length, version uint32, rest string) []byte {
	b := binary.BigEndian.AppendUint32(nil, length)
	b = binary.BigEndian.AppendUint32(b, version)
	return append(b, rest...)
}

// garbage sends bytes and a half-close, and expects an ErrorResponse with the SQLSTATE.
func garbage(addr string, data []byte, state string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		c := dial(t, addr)
		defer c.Close()
		if _, err := c.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantErrorResponse(t, c, state)
	}
}

// wantErrorResponse reads to the end and expects an ErrorResponse with the SQLSTATE.
func wantErrorResponse(t *testing.T, c net.Conn, state string) {
	t.Helper()
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("the answer breaks off: %v", err)
	}
	if len(answer) == 0 || answer[0] != 'E' || !bytes.Contains(answer, []byte("C"+state+"\x00")) {
		t.Errorf("answer %q, want an ErrorResponse with SQLSTATE %s", answer, state)
	}
}

// afterLogin sends bytes on an authenticated connection.
func afterLogin(dsn string, data []byte, state string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, err := pgconn.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		h, err := conn.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Conn.Close()
		if err := h.Conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Conn.Write(data); err != nil {
			t.Fatal(err)
		}
		// Read from the Frontend, not from the connection: after a slow write pgconn has read
		// ahead.
		answer, err := h.Frontend.Receive()
		if e, ok := answer.(*pgproto3.ErrorResponse); !ok || e.Code != state {
			t.Errorf("answer %#v, %v, want an ErrorResponse with SQLSTATE %s", answer, err, state)
		}
		if more, err := h.Frontend.Receive(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after it %#v, %v, want the end", more, err)
		}
	}
}

// vanish requests more than all buffers hold, reads a little, and resets the connection.
func vanish(dsn string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, err := pgconn.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		rows := conn.ExecParams(ctx, "select generate_series(1, 100000000), repeat('x', 1000)", nil, nil, nil, nil)
		if !rows.NextRow() {
			_, err := rows.Close()
			t.Fatal(err)
		}
		raw := conn.Conn().(*net.TCPConn)
		if err := errors.Join(raw.SetLinger(0), raw.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPostgresBackendDown(t *testing.T) {
	server := pgtest.Start(t)
	db := newDatabase(t, server, "down")
	listen := address(t)
	g := startGateway(t, db.pgConfig(t, listen, "transaction", "max_size: 3, acquire_timeout: 3s"), verbose)
	server.Stop(t)
	check(t, g, "db", nil, []badInput{{"backend down", times(func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := query(db.dsn(listen))(ctx)
		if e := wantState(t, err, "08006", "08001", "57P03"); !strings.Contains(e.Message, `"pg"`) {
			t.Errorf("the message does not name the upstream: %q", e.Message)
		}
	}), "upstream_unavailable", []string{"refused", server.Addr()}}})
	server.Restart(t)
	eventually(t, "the gateway finds the server again", func() error { return query(db.dsn(listen))(t.Context()) })
}

func TestPostgresBackendGoneInMidQuery(t *testing.T) {
	server := pgtest.Start(t)
	db := newDatabase(t, server, "gone")
	listen := address(t)
	g := startGateway(t, db.pgConfig(t, listen, "transaction", "max_size: 3, acquire_timeout: 3s"), verbose)
	for name, end := range map[string]func(){"killed": func() { server.Kill(t) }, "shut down": func() { server.Stop(t) }} {
		check(t, g, "db", nil, []badInput{{"backend " + name, func(t *testing.T) {
			conn := connect(t, db.dsn(listen))
			done := make(chan error, 1)
			go func() {
				_, err := conn.Exec(t.Context(), "select pg_sleep(600)")
				done <- err
			}()
			awaitActive(t, server, "gone")
			end()
			e := wantState(t, <-done, "08006", "57P01", "57P02")
			t.Logf("the client is told %v", e)
			_ = conn.Close(t.Context())
		}, "backend_gone", []string{"server connection lost"}}})
		server.Restart(t)
		eventually(t, "the gateway serves again", func() error { return query(db.dsn(listen))(t.Context()) })
	}
}

// awaitActive waits until a user's query runs.
func awaitActive(t *testing.T, server *pgtest.Cluster, user string) {
	t.Helper()
	c := server.Connect(t)
	eventually(t, "the query runs", func() error {
		var n int
		err := c.QueryRow(t.Context(), "select count(*) from pg_stat_activity where usename = $1 and wait_event = 'PgSleep'", user).Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("it does not yet")
		}
		return err
	})
	_ = c.Close(t.Context())
}

func TestPostgresPoolExhausted(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t), "full")
	listen := address(t)
	config := db.pgConfig(t, listen, "transaction", "max_size: 1, acquire_timeout: 1m")
	g := startGateway(t, config, verbose)
	holder := connect(t, db.dsn(listen))
	tx, err := holder.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.reload(strings.Replace(config, "1m", "1s", 1), "applied")
	check(t, g, "db", nil, []badInput{{"pool exhausted", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := query(db.dsn(listen))(ctx)
		if e := wantState(t, err, "53300"); !strings.Contains(e.Message, "max_size 1") {
			t.Errorf("the message does not name the limit: %q", e.Message)
		}
	}, "pool_exhausted", []string{"max size 1"}}})
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("the client that holds the connection: %v", err)
	}
	eventually(t, "a client is served by the connection that is free", func() error { return query(db.dsn(listen))(t.Context()) })
}
