package jsonplan_test

import (
	"bytes"
	"encoding/json"
	jsonv2 "encoding/json/v2"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/headpond/headpond/route/internal/jsonplan"
)

type base struct {
	ID   int64  `json:"id"`
	Kind string `json:"kind,omitempty"`
}

type node struct {
	Name string `json:"name"`
	Next *node  `json:"next,omitempty"`
}

type text string

func (t *text) UnmarshalText(b []byte) error { *t = text("<" + string(b) + ">"); return nil }

// everything has a field of every form.
type everything struct {
	base
	Name     string         `json:"name"`
	Age      int            `json:"age,omitempty"`
	I8       int8           `json:"i8"`
	I16      int16          `json:"i16,omitzero"`
	I32      int32          `json:"i32"`
	U        uint           `json:"u"`
	U8       uint8          `json:"u8"`
	U16      uint16         `json:"u16"`
	U32      uint32         `json:"u32"`
	F32      float32        `json:"f32"`
	F64      float64        `json:"f64,omitempty"`
	Flag     bool           `json:"flag"`
	Tags     []string       `json:"tags"`
	Numbers  []int          `json:"numbers,omitempty"`
	Nested   []node         `json:"nested"`
	Deep     [][]int        `json:"deep"`
	List     *node          `json:"list"`
	PI       *int           `json:"pi"`
	PP       **string       `json:"pp,omitempty"`
	Bytes    []byte         `json:"bytes"`
	Map      map[string]int `json:"map"`
	Any      any            `json:"any"`
	When     time.Time      `json:"when,omitzero"`
	Took     time.Duration  `json:"took"`
	Array    [2]int         `json:"array"`
	Number   json.Number    `json:"number"`
	Raw      json.RawMessage
	Text     text   `json:"text"`
	Ignored  string `json:"-"`
	Dash     string `json:"-,"`
	internal int
}

// small has as few members as are searched for rather than looked up.
type small struct {
	Name string `json:"name"`
	Age  int    `json:"age"`
	List []small
}

func compareDecode[T any](t *testing.T, data []byte) {
	t.Helper()
	var want, got T
	wantErr := jsonv2.Unmarshal(data, &want, jsonplan.Options)
	d := jsonplan.Decoder{MaxDepth: 10000}
	err := d.Decode(jsonplan.Of(reflect.TypeFor[T]()), data, unsafe.Pointer(&got))
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%s\ninto %T: %v, encoding/json: %v", data, got, err, wantErr)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\ngives %+v\nwant  %+v", data, got, want)
	}
	if err == nil {
		compareEncode(t, &got)
	}
}

func compareEncode[T any](t *testing.T, v *T) {
	t.Helper()
	want, wantErr := json.Marshal(v)
	got, err := jsonplan.Of(reflect.TypeFor[T]()).Append(nil, unsafe.Pointer(v))
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%+v: %v, encoding/json: %v", *v, err, wantErr)
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("%+v\ngives %s\nwant  %s", *v, got, want)
	}
}

var texts = []string{
	`{}`, `null`, ` { } `, `[]`, `[{},{},{},{},{},null,{"a":1}]`, `[true,false,null,true,true]`, `["AQ==",null,""]`, `"x"`, `{"name":"Ada","age":36}`, `{"name":null,"age":null,"tags":null,"list":null,"pi":null,"map":null}`,
	`{"NAME":"x","Age":3}`, `{"name":"a","name":"b"}`, `{"x":1,"x":2}`, `{"x":1,"y":{"z":1,"z":2}}`, `{"\u0078":1,"x":2}`, `{"n\u0061me":"b"}`,
	`{"name":"\u00e9\ud83d\ude00\n\"\\\/"}`, `{"name":"\ud800"}`, `{"name":"\x"}`, `{"name":"é😀"}`, "{\"name\":\"\xff\"}", "{\"name\":\"a\x01\"}", "{\"\xff\":1}",
	`{"age":1.0}`, `{"age":1e2}`, `{"age":-0}`, `{"u":-0}`, `{"u":-1}`, `{"age":01}`, `{"age":-}`, `{"age":9223372036854775807}`, `{"age":9223372036854775808}`,
	`{"i8":127,"u8":255}`, `{"i8":128}`, `{"u8":256}`, `{"age":"3"}`, `{"f32":1e39}`, `{"f64":1e309}`, `{"f64":1e-7,"f32":1e21}`, `{"f64":1.}`, `{"f64":1e}`, `{"f64":.5}`, `{"f64":+1}`,
	`{"flag":true}`, `{"flag":tru}`, `{"flag":truex}`, `{"flag":1}`, `{"tags":[]}`, `{"tags":["a",null,"b"]}`, `{"tags":["a",]}`, `{"tags":[,]}`, `{"tags":["a" "b"]}`, `{"tags":{}}`,
	`{"nested":[{"name":"a","next":{"name":"b","next":null}}]}`, `{"deep":[[1,2],[],null,[3]]}`, `{"list":{"name":"x"}}`, `{"list":{"next":{"next":{"next":{}}}}}`, `{"pp":"x"}`, `{"pi":5}`,
	`{"bytes":"AQID"}`, `{"bytes":"!"}`, `{"bytes":[1]}`, `{"map":{"a":1,"b":2}}`, `{"map":{"a":1,"a":2}}`, `{"any":{"x":[1,"2",null,true]}}`, `{"any":{"x":1,"x":2}}`,
	`{"when":"2026-01-02T03:04:05.6Z"}`, `{"when":"x"}`, `{"took":5000}`, `{"array":[1]}`, `{"array":[1,2,3]}`, `{"number":12.5}`, `{"number":"12"}`, `{"Raw": {"a": [1 , 2]} }`, `{"text":"x"}`, `{"Ignored":"x","-":"y"}`,
	`{"id":7,"kind":"k"}`, `{"base":{"id":1}}`, `{"unknown":{"a":[{"b":"]}"}]},"name":"x"}`, `{"unknown":tru}`, `{"unknown":}`, `{"unknown":[1,}`, `{"unknown":01}`,
	`{"name":"x"`, `{"name":"x`, `{"name"`, `{"name":`, `{"name":"x",`, `{"name":"x",}`, `{,}`, `{1:2}`, `{} {}`, `{}x`, ``, ` `, `{"name" "x"}`, `{"name":"x" "age":1}`,
	`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1,"p":1,"q":1,"r":1,"a":2}`,
	`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1,"p":1,"q":1,"r":1,"r":2}`,
	`{"name":"` + strings.Repeat("long ", 100) + `"}`, `{"name":"<a href=\"x\">&\u2028\u2029` + "\u007f" + `"}`, `{"List":[{"name":"a","List":[{"age":2}]}],"age":1}`,
}

func TestDecodesAsEncodingJSON(t *testing.T) {
	for _, s := range texts {
		compareAll(t, []byte(s))
	}
}

func compareAll(t *testing.T, data []byte) {
	compareDecode[everything](t, data)
	compareDecode[small](t, data)
	compareDecode[node](t, data)
	compareDecode[[]small](t, data)
	compareDecode[map[string]small](t, data)
	compareDecode[*small](t, data)
	compareDecode[any](t, data)
	compareDecode[[]string](t, data)
	compareDecode[[]struct{}](t, data)
	compareDecode[[]bool](t, data)
	compareDecode[[][]byte](t, data)
}

func FuzzDecode(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 4096 {
			compareAll(t, data)
		}
	})
}

func FuzzEncode(f *testing.F) {
	f.Add("x", 1.5, int64(3), uint64(4), true, []byte{1})
	f.Add("<&>\u2028\xff\x00", 1e-9, int64(-3), uint64(1<<63), false, []byte(nil))
	f.Fuzz(func(t *testing.T, s string, x float64, i int64, u uint64, b bool, raw []byte) {
		n := int(i)
		v := everything{
			base: base{i, s}, Name: s, Age: n, I8: int8(i), I16: int16(i), I32: int32(i), U: uint(u), U8: uint8(u), U16: uint16(u), U32: uint32(u),
			F32: float32(x), F64: x, Flag: b, Tags: []string{s}, Bytes: raw, PI: &n, Took: time.Duration(i), Number: "1", Dash: s, Ignored: s, internal: 1,
			Nested: []node{{Name: s, Next: &node{Name: s}}}, When: time.Unix(i%1e9, 0).UTC(), Any: []any{s, b}, Map: map[string]int{s: n},
		}
		compareEncode(t, &v)
	})
}

func TestEncodesAsEncodingJSON(t *testing.T) {
	compareEncode(t, &everything{})
	for _, x := range []float64{0, math.Copysign(0, -1), 1e-6, 9.9e-7, 1e20, 1e21, 1.0 / 3, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(1)} {
		compareEncode(t, &x)
		f := float32(x)
		compareEncode(t, &f)
	}
	cycle := &node{Name: "a"}
	cycle.Next = cycle
	compareEncode(t, cycle)
	late := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	compareEncode(t, &late)
	type options struct {
		A []int             `json:"a,omitempty"`
		B map[string]int    `json:"b,omitempty"`
		C [0]int            `json:"c,omitempty"`
		D struct{}          `json:"d,omitempty"`
		E time.Time         `json:"e,omitzero"`
		F *time.Time        `json:"f,omitzero"`
		G any               `json:"g,omitempty"`
		H int               `json:"h,string"`
		I map[string]string `json:"i,omitempty,omitzero"`
	}
	compareEncode(t, &options{})
	compareEncode(t, &options{A: []int{}, E: late.AddDate(-1, 0, 0), G: 1, I: map[string]string{}})
}

func TestDepthIsBounded(t *testing.T) {
	for _, s := range []string{
		strings.Repeat(`{"next":`, 100) + `null` + strings.Repeat(`}`, 100),
		`{"unknown":` + strings.Repeat(`[`, 100) + strings.Repeat(`]`, 100) + `}`,
		strings.Repeat(`[`, 1<<20),
	} {
		var n node
		d := jsonplan.Decoder{}
		if err := d.Decode(jsonplan.Of(reflect.TypeFor[node]()), []byte(s), unsafe.Pointer(&n)); err == nil {
			t.Errorf("%.40s…: no error", s)
		}
	}
}

func TestErrorsPointToTheValue(t *testing.T) {
	for data, want := range map[string]string{
		`{"nested":[{},{"name":3}]}`:    "/nested/1/name",
		`{"map":{"a/b":"x"}}`:           "/map/a~1b",
		`{"age":"3"}`:                   "/age",
		`{"list":{"next":{"name":{}}}}`: "/list/next/name",
		`[]`:                            "",
	} {
		var v everything
		d := jsonplan.Decoder{}
		err := d.Decode(jsonplan.Of(reflect.TypeFor[everything]()), []byte(data), unsafe.Pointer(&v))
		if e, ok := errors.AsType[*jsonplan.Error](err); !ok || e.Pointer != want {
			t.Errorf("%s: %v, want pointer %q", data, err, want)
		}
	}
}

func TestOfFieldsLeavesOut(t *testing.T) {
	type request struct {
		ID   int    `path:"id"`
		Name string `json:"name"`
	}
	p := jsonplan.OfFields(reflect.TypeFor[request](), func(f reflect.StructField) bool { return f.Tag.Get("path") == "" })
	var r request
	d := jsonplan.Decoder{}
	if err := d.Decode(p, []byte(`{"ID":7,"name":"x"}`), unsafe.Pointer(&r)); err != nil || r != (request{Name: "x"}) {
		t.Errorf("%+v, %v", r, err)
	}
	d.RefuseUnknown = true
	if err := d.Decode(p, []byte(`{"ID":7,"name":"x"}`), unsafe.Pointer(&r)); err == nil {
		t.Error("an unknown member was taken")
	}
}
