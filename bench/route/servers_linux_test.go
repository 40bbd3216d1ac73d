package route_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

const postScript = `wrk.method = "POST"
wrk.body = '{"name":"Ada Lovelace","email":"ada@example.com","age":36,"country":"GB"}'
wrk.headers["Content-Type"] = "application/json"
`

// TestServers compares arms behind real servers, each a process on core 0 that wrk loads from core 1 for a second at a
// time, in turn:
//
//	ROUTE_ROUNDS=30 go test -run '^TestServers$' -v ./route
//
// It prints medians with quartiles, and those of the ratios to gin within a round. Without ROUTE_ROUNDS it does
// nothing.
func TestServers(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("ROUTE_ROUNDS"))
	if rounds == 0 {
		return
	}
	script := filepath.Join(t.TempDir(), "post.lua")
	if err := os.WriteFile(script, []byte(postScript), 0o600); err != nil {
		t.Fatal(err)
	}
	names := []string{"gin", "pooled", "ginroute", "prepared"}
	for i, name := range names {
		startServer(t, name, 9340+i)
	}
	for _, w := range []struct {
		name string
		args []string
	}{{"GET", nil}, {"POST JSON", []string{"-s", script}}} {
		cpu, rate := map[string][]float64{}, map[string][]float64{}
		for r := range rounds {
			for i := range names {
				i = (i + r) % len(names)
				c, q := oneRound(t, 9340+i, w.args)
				cpu[names[i]], rate[names[i]] = append(cpu[names[i]], c), append(rate[names[i]], q)
			}
		}
		for _, name := range names {
			fmt.Printf("%s %s: CPU %s µs/request, %s requests/s; against gin: CPU saved %s, requests/s %s\n", w.name, name, spread(cpu[name], 2), spread(rate[name], 0),
				spread(ratios(cpu["gin"], cpu[name]), 3), spread(ratios(rate[name], rate["gin"]), 3))
		}
	}
}

// startServer starts TestServe with an arm in a process of its own.
func startServer(t *testing.T, arm string, port int) {
	t.Helper()
	cmd := exec.Command("taskset", "-c", "0", os.Args[0], "-test.run", "^TestServe$", "-test.cpu", "1", "-test.timeout", "0") //nolint:gosec // this program
	cmd.Env = append(os.Environ(), "ROUTE_ROUNDS=", "ROUTE_ARM="+arm, fmt.Sprint("ROUTE_LISTEN=127.0.0.1:", port), "ROUTE_FOR=1h")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); serverCPU(port) == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer", arm)
		}
	}
}

// serverCPU returns the processor time of a server in µs, 0 if it does not answer.
func serverCPU(port int) float64 {
	resp, err := http.Get(fmt.Sprint("http://127.0.0.1:", port, "/cpu"))
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	ns, _ := strconv.ParseFloat(string(b), 64)
	return ns / 1000
}

var (
	wrkCount = regexp.MustCompile(`(\d+) requests in`)
	wrkRate  = regexp.MustCompile(`Requests/sec: +([0-9.]+)`)
)

// oneRound loads a server for a second.
func oneRound(t *testing.T, port int, args []string) (cpu, rate float64) {
	t.Helper()
	before := serverCPU(port)
	args = append([]string{"-c", "1", "wrk", "-t1", "-c32", "-d1s"}, append(slices.Clone(args), fmt.Sprint("http://127.0.0.1:", port, "/api/users"))...)
	out, err := exec.Command("taskset", args...).CombinedOutput()
	count, rates := wrkCount.FindSubmatch(out), wrkRate.FindSubmatch(out)
	if err != nil || count == nil || rates == nil || regexp.MustCompile("Non-2xx").Match(out) {
		t.Fatalf("wrk: %v\n%s", err, out)
	}
	n, _ := strconv.ParseFloat(string(count[1]), 64)
	rate, _ = strconv.ParseFloat(string(rates[1]), 64)
	return (serverCPU(port) - before) / n, rate
}

func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// spread formats a median with quartiles, minimum and maximum.
func spread(v []float64, digits int) string {
	v = slices.Sorted(slices.Values(v))
	at := func(q float64) float64 { return v[int(q*float64(len(v)-1)+0.5)] }
	return fmt.Sprintf("%.*f [%.*f–%.*f, of %.*f–%.*f]", digits, at(0.5), digits, at(0.25), digits, at(0.75), digits, at(0), digits, at(1))
}
