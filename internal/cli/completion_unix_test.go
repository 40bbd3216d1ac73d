//go:build unix

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletionInShells has each shell that is installed complete with its script. The program is a shell script that hands over to
// this test binary.
func TestCompletionInShells(t *testing.T) {
	dir := t.TempDir()
	program := "#!/bin/sh\n" + runVariable + "=1 exec " + os.Args[0] + ` "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "headpond"), []byte(program), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for shell, ask := range map[string]string{
		"bash": `. "$1"; COMP_WORDS=(headpond ctl he) COMP_CWORD=2; _headpond; echo "${COMPREPLY[@]}"`,
		"fish": `source $argv[1]; complete -C "headpond ctl he"`,
		"zsh":  `compdef() { :; }; _describe() { echo "$found"; }; . "$1"; words=(headpond ctl he) CURRENT=3; _headpond`,
	} {
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("no %s here: its script was not run", shell)
			continue
		}
		_, script, _ := execute("completion", shell)
		file := filepath.Join(dir, shell)
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"-c", ask, "-", file}
		if shell == "fish" {
			args = []string{"-c", ask, file}
		}
		cmd := exec.Command(path, args...) //nolint:gosec // a shell
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "health" {
			t.Errorf("%s: %v, %q", shell, err, out)
		}
	}
}
