package http3_test

import (
	"testing"

	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
