package extension_test

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/freeport"
)

// TestDemo: the lines that it prints work.
func TestDemo(t *testing.T) {
	offset := freeOffset(t)
	cmd := exec.Command(os.Args[0], "demo", "--peers", "-port-offset", strconv.Itoa(offset))
	cmd.Env = append(os.Environ(), runVariable+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	p := conntest.Start(t, cmd)
	asked := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "The first one's") {
			break
		}
		if !strings.HasPrefix(line, "curl ") {
			continue
		}
		asked++
		text, err := exec.Command("/bin/sh", "-c", line+" -sS").CombinedOutput()
		model := []string{"direct", "relayed"}[asked-1]
		if err != nil || !strings.Contains(string(text), `"content":"`+model+` "`) || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
			t.Errorf("%s\n%v\n%s", line, err, text)
		}
	}
	if asked != 2 {
		t.Errorf("%d lines with curl", asked)
	}
	second := exec.Command(os.Args[0], "demo", "-peers", "-port-offset", strconv.Itoa(offset))
	second.Env = cmd.Env
	if text, err := second.CombinedOutput(); err == nil || !strings.Contains(string(text), "-port-offset 1000") {
		t.Errorf("with the ports of another demo: %v\n%s", err, text)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// freeOffset is one with which the ports of the demo are free.
func freeOffset(t *testing.T) int {
	t.Helper()
	port, err := freeport.Get(9090 - 8092)
	if err != nil {
		t.Fatal(err)
	}
	return port - 8092
}
