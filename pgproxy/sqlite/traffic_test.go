package sqlite_test

import (
	"runtime"
	"testing"
	"time"
)

// TestTraffic counts transactions, queries and errors by user.
func TestTraffic(t *testing.T) {
	s := start(t)
	c := s.connect(t)
	mustExec(t, c, "select 1")
	for _, sql := range []string{"begin", "select 1", "commit"} {
		mustExec(t, c, sql)
	}
	_, err := c.Exec(t.Context(), "select nonsense")
	wantState(t, err, "42703", "a column that there is not")
	want := map[string]float64{
		"postgres_transactions_total": 3, "postgres_queries_total": 5, "postgres_errors_total": 1,
		"postgres_user_transactions_total": 3, "postgres_user_queries_total": 5, "postgres_user_errors_total": 1,
	}
	until := time.Now().Add(time.Minute)
	for {
		traffic, got := s.p.Stats().Traffic[0], map[string]float64{}
		for _, v := range traffic.Views {
			for _, row := range traffic.Of(v) {
				for _, counter := range v.Counters {
					got[counter.Name] += counter.Read(&row)
				}
			}
		}
		right := true
		for name, n := range want {
			right = right && got[name] == n
		}
		if right {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("counted %v, want %v", got, want)
		}
		runtime.Gosched()
	}
}
