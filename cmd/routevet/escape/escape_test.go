package escape_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/headpond/headpond/cmd/routevet/escape"
)

func TestAnalyzer(t *testing.T) { analysistest.Run(t, analysistest.TestData(), escape.Analyzer, "a") }
