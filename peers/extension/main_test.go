package extension_test

import (
	"os"
	"testing"

	"github.com/headpond/headpond/internal/cli"
	"github.com/headpond/headpond/internal/leaktest"
)

// runVariable makes this test's program headpond itself.
const runVariable = "HEADPOND_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runVariable) != "" {
		os.Exit(cli.Main("test"))
	}
	leaktest.Main(m)
}
