package integration

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// topScript runs top in a shell that controls jobs, as an operator's does, and goes on with it when it is stopped.
const topScript = `set -m; "$0" top -admin "$1" -i 200ms -view sessions; echo "left with $?"; fg; echo "over with $?"`

// TestTopFindsAndEndsWhoHoldsTheConnection on a terminal, while others come and go, and stops and continues as a job.
func TestTopFindsAndEndsWhoHoldsTheConnection(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "shop")
	listen := address(t)
	g := startGateway(t, strings.Replace(db.pgConfig(t, listen, "transaction", "max_size: 1, acquire_timeout: 1m"), "{mode:", "{show_statements: true, mode:", 1))
	waiter := connect(t, db.dsn(listen)+"&application_name=web") // a login takes a server connection
	holder := connect(t, db.dsn(listen)+"&application_name=nightly")
	for _, sql := range []string{"begin", "select 'held'"} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	answered := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(t.Context(), "select 1")
		answered <- err
	}()

	term := conntest.NewTerminal(t, 120, 24)
	before := term.Settings()
	cmd := exec.Command("sh", "-c", topScript, built(t, g.built), g.admin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.File, term.File, term.File
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	top := conntest.Start(t, cmd)
	shows := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			eventually(t, fmt.Sprintf("%q is on the screen", text), func() error {
				if !strings.Contains(term.Screen(), text) {
					return fmt.Errorf("%s", term.Screen())
				}
				return nil
			})
		}
	}
	shows("1 waiting", "1 idle in tx", "shop@shop nightly", "waiters: 1")
	term.Type("\x1a") // ^Z
	eventually(t, "it was stopped and continues", func() error {
		_, after, stopped := strings.Cut(term.Output(), "\x1b[?1049lleft with 147")
		if !stopped || !strings.Contains(after, "\x1b[?1049h") || !strings.Contains(after, "\x1b[J") {
			return fmt.Errorf("%s", term.Screen())
		}
		return nil
	})
	term.Type("\x1b[B\r") // the longest holder is the first row
	shows("select 'held'", "nightly")
	term.Type("k")
	shows("? y/n  shop@shop nightly from ")
	term.Type("y")
	if err := <-answered; err != nil {
		t.Errorf("the waiter: %v", err)
	}
	if _, err := holder.Exec(t.Context(), "select 1"); err == nil {
		t.Error("the holder goes on")
	} else if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code != "57P01" {
		t.Errorf("the holder: %v", err)
	}
	shows("was ended", "0 waiting")
	term.Type("qq")
	eventually(t, "it has ended, and the terminal is as it was", func() error {
		if _, after, _ := strings.Cut(term.Output(), "was ended"); !strings.Contains(after, "\x1b[?1049lover with 0") || term.Settings() != before {
			return fmt.Errorf("%+v, before: %+v", term.Settings(), before)
		}
		return nil
	})
	if err := top.Wait(); err != nil {
		t.Error(err)
	}
}
