package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
)

// buildDir holds the binaries under test.
var buildDir string

var (
	binaries = flag.String("binaries", "", "a `directory` of the binaries under test, for several runs; what is missing is built before the tests")
	released = flag.Bool("released", false, "test the program as it is released, not one with the race detector")
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(apiServerDir); dir != "" { // a child of TestHungAPIServer
		serveAPI(dir, os.Getenv(apiServerAddress))
		return
	}
	flag.Parse()
	remove, err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := pgtest.Runner(m).Run()
	if err := remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// prepare makes buildDir, or builds what is missing in the directory of -binaries.
func prepare() (remove func() error, err error) {
	if buildDir = *binaries; buildDir != "" {
		for _, binary := range []func() (string, error){plainBinary, raceBinary} {
			if _, err := binary(); err != nil {
				return nil, err
			}
		}
		return func() error { return nil }, nil
	}
	if buildDir, err = os.MkdirTemp("", "hp-bin-"); err != nil {
		return nil, err
	}
	return func() error { return os.RemoveAll(buildDir) }, os.Chmod(buildDir, 0o755) // one test runs the binary as another user
}

// plainBinary builds the program as `make build` does, once.
var plainBinary = sync.OnceValues(func() (string, error) {
	return build("headpond", []string{"CGO_ENABLED=0"}, "-trimpath", "-ldflags", "-s -w -X main.version=integration")
})

// withRace are the flags of the Makefile's RACE. Nobody debugs these programs.
var withRace = []string{"-ldflags=-w", "-race", "-gcflags=modernc.org/...=-race=false"}

// gatewayBinary is the binary that tests use if they do not choose one.
func gatewayBinary() (string, error) {
	if *released {
		return plainBinary()
	}
	return raceBinary()
}

// raceBinary builds the program with the race detector, once.
var raceBinary = sync.OnceValues(func() (string, error) {
	return build("headpond-race", []string{"CGO_ENABLED=1"}, withRace...)
})

func build(name string, env []string, flags ...string) (string, error) {
	out := filepath.Join(buildDir, name)
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	args := append([]string{"build", "-buildvcs=false", "-o", out}, flags...)
	cmd := exec.Command("go", append(args, "./cmd/headpond")...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return out, nil
}
