package peers_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/bench/internal/cpu"
)

// eventPause is the time between two events, long enough for one to arrive.
const eventPause = time.Millisecond

// serve answers an upload when it has received all of it. At /events it sends ?n events, each with the time.
func serve(b *testing.B) string {
	b.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n")) // none: an upload
		if n == 0 {
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(eventPause)
		defer tick.Stop()
		for range n {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixNano())
			_ = http.NewResponseController(w).Flush()
			<-tick.C
		}
	}))
	b.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// BenchmarkUpload1MiB sends uploads of 1 MiB from two clients.
func BenchmarkUpload1MiB(b *testing.B) {
	body := make([]byte, 1<<20)
	for _, arm := range arms {
		b.Run(arm.name, func(b *testing.B) {
			address := arm.start(b, serve(b))
			transport := &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true, WriteBufferSize: 64 << 10}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			b.SetParallelism(1)
			b.ResetTimer()
			before := cpu.Time()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := upload(client, address, body); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(cpu.Time()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func upload(client *http.Client, address string, body []byte) error {
	resp, err := client.Post(address+"/", "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %w", resp.Status, err)
	}
	return nil
}

// BenchmarkEvents reads events, one a millisecond, and reports the time from the server's write to the client's read.
func BenchmarkEvents(b *testing.B) {
	for _, arm := range arms {
		b.Run(arm.name, func(b *testing.B) {
			address := arm.start(b, serve(b))
			b.ResetTimer()
			resp, err := http.Get(fmt.Sprint(address, "/events?n=", b.N))
			if err != nil {
				b.Fatal(err)
			}
			defer resp.Body.Close()
			in := bufio.NewReader(resp.Body)
			delays := make([]time.Duration, 0, b.N)
			for len(delays) < b.N {
				line, err := in.ReadString('\n')
				if err != nil {
					b.Fatal(err)
				}
				if text, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok {
					sent, err := strconv.ParseInt(text, 10, 64)
					if err != nil {
						b.Fatal(err)
					}
					delays = append(delays, time.Since(time.Unix(0, sent)))
				}
			}
			slices.Sort(delays)
			b.ReportMetric(float64(delays[len(delays)/2].Nanoseconds())/1e3, "p50_us")
			b.ReportMetric(float64(delays[min(len(delays)-1, len(delays)*99/100)].Nanoseconds())/1e3, "p99_us")
		})
	}
}
