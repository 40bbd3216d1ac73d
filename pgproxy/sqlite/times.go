package sqlite

import (
	"crypto/rand"
	"math"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
	"zombiezen.com/go/sqlite"
)

// timeFunctions are PostgreSQL's date and time functions. The zone of every session is UTC.
func timeFunctions() map[string]fn {
	clock := func(oid uint32) fn {
		return fn{[]int{0}, func(*connState, []sqlite.Value) (sqlite.Value, error) {
			return text(formatTime(time.Now().UTC(), oid)), nil
		}}
	}
	now := clock(oidTimestamptz)
	return map[string]fn{
		"now": now, "transaction_timestamp": now, "statement_timestamp": now, "clock_timestamp": now,
		"localtimestamp": clock(oidTimestamp), "localtime": clock(oidTime),
		"extract": {[]int{2}, extract}, "date_part": {[]int{2}, extract},
		"date_trunc": {[]int{2}, dateTrunc},
		"to_timestamp": {[]int{1}, func(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
			v, err := coerce(oidFloat8, fromSQL(args[0]))
			if err != nil || v.typ == sqlite.TypeNull {
				return sqlite.Value{}, err
			}
			t := time.UnixMicro(int64(math.Round(v.float * 1e6))).UTC()
			if math.Abs(v.float) > 1e12 || t.Year() < 1 || t.Year() > 9999 {
				return sqlite.Value{}, sqlError(stateDatetimeOverflow, "timestamp out of range: %s", quoted(v))
			}
			return text(formatTime(t, oidTimestamptz)), nil
		}},
		"gen_random_uuid": {[]int{0}, func(*connState, []sqlite.Value) (sqlite.Value, error) {
			var u [16]byte
			_, _ = rand.Read(u[:]) // never fails
			u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
			return text(string(appendUUID(nil, u))), nil
		}},
	}
}

// timeArgs reads the arguments of extract and date_trunc. ok is false if one is NULL.
func timeArgs(args []sqlite.Value) (field string, t time.Time, ok bool, err error) {
	if isNull(args[0]) || isNull(args[1]) {
		return "", t, false, nil
	}
	v := fromSQL(args[1])
	if t, ok = moment(oidTimestamp, v, false); !ok {
		t, ok = moment(oidTime, v, false)
	}
	if !ok {
		_, err = toTime(oidTimestamp, v)
	}
	return strings.TrimSuffix(strings.ToLower(strings.TrimSpace(args[0].Text())), "s"), t, ok, err
}

func unknownUnit(field sqlite.Value) error {
	return sqlError(pgwire.StateInvalidParameterValue, "unit %q not recognized for type timestamp", clip(field.Text()))
}

func extract(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	field, t, ok, err := timeArgs(args)
	if !ok {
		return sqlite.Value{}, err
	}
	isoYear, week := t.ISOWeek()
	micros := int64(t.Second())*1e6 + int64(t.Nanosecond()/1000)
	whole := map[string]int64{
		"year": int64(t.Year()), "month": int64(t.Month()), "day": int64(t.Day()), "hour": int64(t.Hour()), "minute": int64(t.Minute()),
		"dow": int64(t.Weekday()), "isodow": (int64(t.Weekday())+6)%7 + 1, "doy": int64(t.YearDay()), "week": int64(week), "isoyear": int64(isoYear),
		"quarter": int64(t.Month()+2) / 3, "decade": int64(t.Year()) / 10, "century": int64(t.Year()+99) / 100, "millennium": int64(t.Year()+999) / 1000,
		"microsecond": micros, "timezone": 0, "timezone_hour": 0, "timezone_minute": 0,
	}
	parts := map[string]float64{
		"second": float64(micros) / 1e6, "millisecond": float64(micros) / 1e3, "epoch": float64(t.UnixMicro()) / 1e6,
		"julian": float64(t.UnixMicro())/86400e6 + 2440588,
	}
	if n, ok := whole[field]; ok {
		return sqlite.IntegerValue(n), nil
	}
	if f, ok := parts[field]; ok {
		return sqlite.FloatValue(f), nil
	}
	return sqlite.Value{}, unknownUnit(args[0])
}

func dateTrunc(_ *connState, args []sqlite.Value) (sqlite.Value, error) {
	field, t, ok, err := timeArgs(args)
	if !ok {
		return sqlite.Value{}, err
	}
	firstOf := func(year int, month time.Month, day int) time.Time {
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	}
	switch y, m, d := t.Date(); field {
	case "microsecond":
		t = t.Truncate(time.Microsecond)
	case "millisecond":
		t = t.Truncate(time.Millisecond)
	case "second":
		t = t.Truncate(time.Second)
	case "minute":
		t = t.Truncate(time.Minute)
	case "hour":
		t = t.Truncate(time.Hour)
	case "day":
		t = firstOf(y, m, d)
	case "week":
		t = firstOf(y, m, d-(int(t.Weekday())+6)%7)
	case "month":
		t = firstOf(y, m, 1)
	case "quarter":
		t = firstOf(y, (m-1)/3*3+1, 1)
	case "year":
		t = firstOf(y, 1, 1)
	case "decade":
		t = firstOf(y/10*10, 1, 1)
	case "century":
		t = firstOf((y-1)/100*100+1, 1, 1)
	case "millennium":
		t = firstOf((y-1)/1000*1000+1, 1, 1)
	default:
		return sqlite.Value{}, unknownUnit(args[0])
	}
	return text(formatTime(t, oidTimestamptz)), nil
}
