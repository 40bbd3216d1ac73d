package hba_test

import (
	"testing"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/pgtest"
)

func TestMain(m *testing.M) {
	leaktest.Main(pgtest.Runner(m))
}
