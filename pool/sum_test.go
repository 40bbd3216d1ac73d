package pool_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
)

// TestStatsAdd adds statistics whose fields all differ: every number is summed, but for the fields that say otherwise.
func TestStatsAdd(t *testing.T) {
	t0 := time.Unix(1000, 0)
	make2 := func(first uint64, name string, since time.Time) (s pool.Stats) {
		v := reflect.ValueOf(&s).Elem()
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Int:
				f.SetInt(int64(first) + int64(i))
			case reflect.Uint64:
				f.SetUint(first + uint64(i))
			}
		}
		s.Name, s.Since, s.LastRefused = name, since, since
		s.AcquireSeconds.Counts[3], s.AcquireSeconds.Sum = first, time.Duration(first)
		s.OpenTime, s.OldestWait = time.Duration(first)*time.Second, time.Duration(first)*time.Minute
		return s
	}
	a, b := make2(100, "a", t0), make2(10000, "b", t0.Add(time.Hour))
	b.Paused, b.LastOpenError = true, errors.New("b's")
	sum := a
	sum.Add(b)
	va, vb, vs := reflect.ValueOf(a), reflect.ValueOf(b), reflect.ValueOf(sum)
	for i := range vs.NumField() {
		name := vs.Type().Field(i).Name
		switch f := vs.Field(i); f.Kind() {
		case reflect.Int:
			if f.Int() != va.Field(i).Int()+vb.Field(i).Int() {
				t.Errorf("%s is %d", name, f.Int())
			}
		case reflect.Uint64:
			if f.Uint() != va.Field(i).Uint()+vb.Field(i).Uint() {
				t.Errorf("%s is %d", name, f.Uint())
			}
		}
	}
	if sum.Name != "a" || !sum.Paused || !sum.Since.Equal(t0) || !sum.LastRefused.Equal(t0.Add(time.Hour)) || sum.LastOpenError != b.LastOpenError { //nolint:errorlint // this very value
		t.Errorf("the sum is %+v", sum)
	}
	if a.Add(pool.Stats{OldestWait: time.Second}); sum.OldestWait != b.OldestWait || a.OldestWait != 100*time.Minute {
		t.Errorf("the longer wait is not %v, or not %v", sum.OldestWait, a.OldestWait)
	}
	if sum.AcquireSeconds.Counts[3] != 10100 || sum.AcquireSeconds.Sum != 10100 {
		t.Errorf("the sum's histogram: %+v", sum.AcquireSeconds)
	}
	if want := (100*float64(a.Opened) + 10000*float64(b.Opened)) / float64(a.Opened+b.Opened); sum.OpenTime.Seconds() < want-1 || sum.OpenTime.Seconds() > want+1 {
		t.Errorf("opens take %v, want %v s", sum.OpenTime, want)
	}
	var none pool.Stats
	none.Name = "a"
	if none.Add(a); none != a {
		t.Errorf("nothing and a make %+v", none)
	}
	if a.Add(pool.Stats{}); none != a {
		t.Errorf("a and nothing make %+v", a)
	}
}
