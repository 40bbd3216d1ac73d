package logfile_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// TestFullDevice: lines that cannot be written are counted, and reported once.
func TestFullDevice(t *testing.T) {
	s, log := newSet(t)
	open(t, s, "/dev/full")
	for range 100 {
		s.File("/dev/full").WriteLine(0, []byte("x\n"))
	}
	conntest.Eventually(t, "the count", func() bool { return s.States()[0].Failed == 100 })
	if e := s.States()[0].Error; e != "no space left on device" {
		t.Error(e)
	}
	line := ""
	conntest.Eventually(t, "the report", func() bool { line = log.Line("access log"); return line != "" })
	if !strings.Contains(line, "path=/dev/full") || !strings.Contains(line, "no space left") {
		t.Error(line)
	}
	for range 100 {
		s.File("/dev/full").WriteLine(0, []byte("x\n"))
	}
	conntest.Eventually(t, "the count", func() bool { return s.States()[0].Failed == 200 })
	if n := strings.Count(log.String(), "were lost"); n != 1 {
		t.Errorf("%d reports within a minute: %s", n, log)
	}
	if !s.Close(grace) {
		t.Error("not closed")
	}
	reported := 0
	for _, m := range regexp.MustCompile(`lines=(\d+)`).FindAllStringSubmatch(log.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		reported += n
	}
	if reported != 200 {
		t.Errorf("%d lines are reported, 200 are lost: %s", reported, log)
	}
}
