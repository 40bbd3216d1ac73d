package gateway_test

import (
	"bufio"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
)

// TestALogThatNobodyReadsHoldsNobody: lines are dropped, and counted once somebody reads again.
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
