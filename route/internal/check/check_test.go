package check_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/route/internal/check"
)

func name(sf reflect.StructField) (in, name string) { return "body", strings.ToLower(sf.Name) }

// violations are those of a struct with one field of a value, and the rules of a tag: "pointer rule: detail".
func violations(t *testing.T, tag string, v any) []string {
	t.Helper()
	typ := reflect.StructOf([]reflect.StructField{{Name: "V", Type: reflect.TypeOf(v), Tag: reflect.StructTag(fmt.Sprintf("validate:%q", tag))}})
	p, err := check.Compile(typ, name, nil)
	if err != nil {
		t.Fatalf("%s on %T: %v", tag, v, err)
	}
	s := reflect.New(typ)
	s.Elem().Field(0).Set(reflect.ValueOf(v))
	list := []string{}
	for _, f := range p.Check(s.UnsafePointer(), nil) {
		list = append(list, f.Pointer+" "+f.Rule+": "+f.Detail)
	}
	return list
}

func ptr[T any](v T) *T { return &v }

type pair struct {
	A string `validate:"required"`
	B string `validate:"eqfield=A"`
}

// rules are values that a tag accepts, and values that it rejects, with the error of the latter.
var rules = []struct {
	tag       string
	good, bad []any
	detail    string
}{
	{"required", []any{"x", 1, true, []int{}, ptr(0), time.Unix(1, 0)}, []any{"", 0, false, []int(nil), (*int)(nil), time.Time{}}, "is required"},
	{"isdefault", []any{"", 0}, []any{"x", 1}, "must not be set"},
	{"min=2", []any{"ab", "éé", 2, int8(3), uint(2), 2.5, []int{1, 2}, 2 * time.Nanosecond}, []any{"a", "é", 1, int8(-1), uint16(1), float32(1.5), []int{1}}, "must be at least 2"},
	{"max=2", []any{"", "éé", 2, uint8(2), map[string]int{}}, []any{"abc", 3, uint8(3), 2.1, []int{1, 2, 3}}, "must be at most 2"},
	{"gt=1s", []any{2 * time.Second}, []any{time.Second}, "must be more than 1s"},
	{"gt", []any{time.Now().Add(time.Hour)}, []any{time.Unix(0, 0)}, "must be more than now"},
	{"lt=2", []any{1, "a"}, []any{2, "ab"}, "must be less than 2"},
	{"len=2", []any{"éé", []int{1, 2}, 2}, []any{"a", []int{}, 3}, "must be exactly 2"},
	{"eq=2", []any{"2", 2, uint(2), 2.0}, []any{"x", 3, uint(1)}, "must be 2"},
	{"ne=true", []any{"x", false}, []any{"true", true}, "must not be true"},
	{"oneof=1 'b c'", []any{"1", "b c", 1, uint8(1)}, []any{"b", "", 2, uint8(2)}, "must be one of 1 'b c'"},
	{"unique", []any{[]int{1, 2}, []*int{ptr(1), nil}, map[string]int{"a": 1}}, []any{[]int{1, 1}, []*int{ptr(1), ptr(1)}, map[string]int{"a": 1, "b": 1}}, "must have no equal elements"},
	{"contains=x", []any{"axb"}, []any{"ab"}, "must contain x"},
	{"containsany=xy", []any{"ay"}, []any{"ab"}, "must contain one of xy"},
	{"excludes=x", []any{"ab"}, []any{"axb"}, "must not contain x"},
	{"startswith=a0x2C", []any{"a,b"}, []any{"ab"}, "must start with a,"},
	{"endswith=b", []any{"ab"}, []any{"ba"}, "must end with b"},
	{"datetime=2006-01-02", []any{"2026-01-31"}, []any{"2026-02-31"}, "must be a time such as 2006-01-02"},
	{"email", []any{"a@b.co", `"a b"@c.de`, "é@ü.de"}, []any{"a@b", "@b.co", "a@b.c\ue000", `"a@b.co`}, "must be an e-mail address"},
	{"url", []any{"http://x", "mailto:a", "file:///a"}, []any{"x", "http://", "file:///"}, "must be a URL"},
	{"uri", []any{"/x", "http://x#y"}, []any{"x", "#y"}, "must be a URI"},
	{"http_url", []any{"https://x/y"}, []any{"ftp://x", "x"}, "must be an http or https URL"},
	{"uuid4", []any{"12345678-1234-4234-8234-123456789abc"}, []any{"12345678-1234-4234-7234-123456789abc", "x"}, "must be a UUID of version 4"},
	{"alphanum", []any{"aZ9"}, []any{"", "a b", "é"}, "must be Latin letters and digits"},
	{"alphaunicode", []any{"aé"}, []any{"", "1"}, "must be letters"},
	{"numeric", []any{"-1.5", 1, 2.5}, []any{"1.", "", "x"}, "must be a decimal number"},
	{"hexadecimal", []any{"0xAf", "1"}, []any{"0x", "g"}, "must be a hexadecimal number"},
	{"ip", []any{"::1", "1.2.3.4"}, []any{"1.2.3"}, "must be an IP address"},
	{"hostname_rfc1123", []any{"a-b.c"}, []any{"-a", "a..b", strings.Repeat("a", 64)}, "must be a host name"},
	{"e164", []any{"+4930123456"}, []any{"0123", "+"}, "must be a telephone number such as +4930123456"},
	{"base64", []any{"YWI="}, []any{"YW", ""}, "must be base64"},
	{"email|len=1", []any{"a@b.co", "x"}, []any{"xy"}, "breaks the rule email|len=1"},
	{"omitempty,min=3", []any{"", "abc", 0, 3, (*string)(nil)}, []any{"a", 1, ptr("")}, "must be at least 3"},
	{"omitnil,min=3", []any{(*int)(nil), ptr(3)}, []any{ptr(0)}, "must be at least 3"},
}

func TestRules(t *testing.T) {
	for _, r := range rules {
		for _, v := range r.good {
			if got := violations(t, r.tag, v); len(got) > 0 {
				t.Errorf("%s on %#v: %v", r.tag, v, got)
			}
		}
		for _, v := range r.bad {
			if got := violations(t, r.tag, v); len(got) != 1 || !strings.HasPrefix(got[0], "/v ") || !strings.Contains(got[0], ": "+r.detail) {
				t.Errorf("%s on %#v: %v, want %q", r.tag, v, got, r.detail)
			}
		}
	}
}

func TestPointersLeadToTheValue(t *testing.T) {
	for want, c := range map[string]struct {
		tag string
		v   any
	}{
		"/v/1 required: is required":         {"dive,required", []string{"a", ""}},
		"/v/0/1 min: must be at least 3":     {"dive,dive,min=3", [][]int{{3, 2}}},
		"/v/a~1b max: must be at most 1":     {"dive,max=1", map[string]int{"a/b": 2}},
		"/v/0/b eqfield: must be equal to A": {"dive", []*pair{{"x", "y"}}},
		"/v/a required: is required":         {"", pair{}},
		"/v dive: breaks the rule dive":      {"dive", (*[]int)(nil)},
		"/v/0 required: is required":         {"dive,required", [2]int{0, 1}},
	} {
		if got := violations(t, c.tag, c.v); len(got) != 1 || got[0] != want {
			t.Errorf("%s on %#v: %v, want %s", c.tag, c.v, got, want)
		}
	}
}

func TestTagsThatCannotBe(t *testing.T) {
	for tag, v := range map[string]any{
		"requierd": "", "min": "", "min=x": 0, "max=1.5": 0, "gt=x": 0.0, "len=1": true, "eq=x": true, "oneof=": "", "oneof=a": 1.5, "unique": "", "unique=X": []pair{},
		"eqfield=Y": "", "email=x": "", "contains": "", "email": 0, "dive": "", "min=1": any(nil), "unique,dive": [][]int{},
	} {
		typ := reflect.TypeFor[any]()
		if v != nil {
			typ = reflect.TypeOf(v)
		}
		s := reflect.StructOf([]reflect.StructField{{Name: "V", Type: typ, Tag: reflect.StructTag(fmt.Sprintf("binding:%q", tag))}})
		if _, err := check.Compile(s, name, nil); err == nil || !strings.Contains(err.Error(), "field V") {
			t.Errorf("%s on %v: %v", tag, typ, err)
		}
	}
}
