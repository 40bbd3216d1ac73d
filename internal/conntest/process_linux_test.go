package conntest_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// parentVariable makes this test's program one that starts another and waits.
const parentVariable = "CONNTEST_PARENT"

// TestProcessEndsWithItsParent kills a test process, which cleans up nothing.
func TestProcessEndsWithItsParent(t *testing.T) {
	if os.Getenv(parentVariable) != "" {
		cmd := exec.Command("sh", "-c", "echo runs; read line")
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
		_ = conntest.Start(t, cmd).Wait()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcessEndsWithItsParent$")
	cmd.Env = append(os.Environ(), parentVariable+"=1")
	stdin, err := cmd.StdinPipe() // the started program ends with this, at the latest
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	_ = out.SetReadDeadline(time.Now().Add(conntest.Patience))
	cmd.Stdout = w
	p := conntest.Start(t, cmd)
	_ = w.Close()
	if _, err := io.ReadFull(out, make([]byte, len("runs\n"))); err != nil {
		t.Fatal(err)
	}
	_ = p.Cmd.Process.Kill()
	_ = p.Wait()
	var rest strings.Builder
	if _, err := io.Copy(&rest, out); err != nil || rest.Len() > 0 { // ends when there is no writer
		t.Errorf("a child of the killed process still runs: %q, %v", rest.String(), err)
	}
}
