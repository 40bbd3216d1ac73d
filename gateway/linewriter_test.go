package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
)

// TestALogThatNobodyReadsHoldsNobody: lines are dropped, and counted once the log is read again.
func TestALogThatNobodyReadsHoldsNobody(t *testing.T) {
	for format, dropped := range map[string]string{"text": `lines were dropped.* lines=(\d+)$`, "json": `^\{.*lines were dropped.*"lines":(\d+)\}$`} {
		t.Run(format, func(t *testing.T) {
			r, w := io.Pipe()
			logger, _, flush := gateway.NewLog(w, format, "info")
			const logged = 20_000
			long := strings.Repeat("x", 1000)
			for range logged {
				logger.Info(long)
			}
			got := make(chan int)
			go func() { // only now
				count, lines := regexp.MustCompile(dropped), bufio.NewScanner(r)
				n := 0
				for lines.Scan() {
					if strings.Contains(lines.Text(), long) {
						n++
					} else if m := count.FindStringSubmatch(lines.Text()); m != nil {
						k, _ := strconv.Atoi(m[1])
						n += k
					}
				}
				got <- n
			}()
			for !flush() {
				continue // the reader is slow
			}
			logger.Info("too late, and no harm")
			_ = w.Close()
			if n := <-got; n != logged {
				t.Errorf("%d lines were written or counted of %d", n, logged)
			}
		})
	}
}

// flaky is a log file on a disk that is full until it is not.
type flaky struct {
	mu   sync.Mutex
	full error // a write takes the bytes of room then
	room int
	got  bytes.Buffer
	done chan struct{} // gets one for each write
}

func (f *flaky) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.done <- struct{}{} }()
	if f.full != nil {
		n := min(f.room, len(p))
		f.room -= n
		f.got.Write(p[:n])
		return n, f.full
	}
	return f.got.Write(p)
}

// TestALogThatCannotBeWritten: lost lines are counted by reason, the reason is available, and the log reports it once
// it can. A partly written line stays a separate line, however long the disk is full.
func TestALogThatCannotBeWritten(t *testing.T) {
	for format, begin := range map[string]string{"text": "t", "json": "{"} {
		t.Run(format, func(t *testing.T) {
			w := &flaky{full: &os.PathError{Op: "write", Path: "/dev/\x01stderr", Err: syscall.ENOSPC}, room: 1, done: make(chan struct{}, 100)}
			logger, missed, flush := gateway.NewLogTo(w, format)
			for i := range uint64(3) {
				logger.Info("lost")
				<-w.done
				for missed().DiskFull == i {
					runtime.Gosched() // it is noted after the write
				}
			}
			if m := missed(); m.DiskFull != 3 || m.Failed != 0 || !strings.Contains(m.Error, "no space left") {
				t.Errorf("%+v", m)
			}
			w.mu.Lock()
			w.full = nil
			w.mu.Unlock()
			logger.Info("second")
			if !flush() {
				t.Error("it does not end")
			}
			if m := missed(); m.DiskFull != 3 || m.Error != "" {
				t.Errorf("%+v", m)
			}
			lines := strings.Split(strings.TrimSuffix(w.got.String(), "\n"), "\n")
			if len(lines) != 3 || lines[0] != begin || !strings.Contains(lines[1], "second") || !strings.Contains(lines[2], "log lines could not be written") || !strings.Contains(lines[2], "no space left") {
				t.Errorf("%q", lines)
			}
			for _, line := range lines[1:] {
				if format == "json" && !json.Valid([]byte(line)) {
					t.Errorf("no JSON: %s", line)
				}
			}
		})
	}
}

// TestDurationsSayTheirUnit in JSON, where they are numbers.
func TestDurationsSayTheirUnit(t *testing.T) {
	for format, want := range map[string]string{"json": `"duration_seconds":0.0015`, "text": "duration=1.5ms"} {
		var out bytes.Buffer
		logger, _, flush := gateway.NewLog(&out, format, "info")
		logger.Info("access", "duration", 1500*time.Microsecond)
		if flush(); !strings.Contains(out.String(), want) {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}
