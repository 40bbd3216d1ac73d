package pgtest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// childEnv makes this test binary the child of TestServerEndsWithKilledTest.
const childEnv = "PGTEST_TEST_CHILD"

// TestServerEndsWithKilledTest kills a test binary that runs a server and waits for the server to be gone.
func TestServerEndsWithKilledTest(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		c := pgtest.Start(t)
		fmt.Println("RUNNING", c.Addr(), c.SocketDir())
		select {} // until killed
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerEndsWithKilledTest$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr, data string
	if _, err := fmt.Fscanf(out, "RUNNING %s %s\n", &addr, &data); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(data)) })
	dsn := "postgres://postgres@" + addr + "/postgres?sslmode=disable"
	conn, err := connect(t, dsn)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	// Our connection ends when its backend does; no polling needed.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("the server outlived the test binary that started it (%v)", err)
	}
}
