package jsonplan_test

import (
	"bytes"
	"encoding/json"
	jsonv2 "encoding/json/v2"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/headpond/headpond/route/internal/jsonplan"
)

// scalars are the parts of random types.
var scalars = []reflect.Type{
	reflect.TypeFor[string](), reflect.TypeFor[bool](), reflect.TypeFor[int](), reflect.TypeFor[int8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint64](),
	reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[time.Time](), reflect.TypeFor[any](), reflect.TypeFor[[]byte](), reflect.TypeFor[netip.Addr](),
	reflect.TypeFor[json.RawMessage](), reflect.TypeFor[time.Duration](), reflect.TypeFor[struct{}](), reflect.TypeFor[node](), reflect.TypeFor[text](),
}

func randomType(random *rand.Rand, depth int) reflect.Type {
	if depth == 0 {
		return scalars[random.IntN(len(scalars))]
	}
	switch random.IntN(8) {
	case 0:
		return reflect.SliceOf(randomType(random, depth-1))
	case 1:
		return reflect.PointerTo(randomType(random, depth-1))
	case 2:
		return reflect.MapOf(reflect.TypeFor[string](), randomType(random, depth-1))
	case 3:
		return reflect.ArrayOf(random.IntN(3), randomType(random, depth-1))
	case 4, 5, 6:
		var fields []reflect.StructField
		for i := range random.IntN(14) {
			name := string(rune('A' + i))
			tag := []string{"", `json:"` + string(rune('a'+i)) + `"`, `json:",omitempty"`, `json:",omitzero"`, `json:"` + string(rune('a'+i)) + `,omitempty,omitzero"`, `json:"-"`, `json:",string"`}[random.IntN(7)]
			if random.IntN(4) > 0 && tag == `json:",string"` {
				tag = ""
			}
			fields = append(fields, reflect.StructField{Name: name, Type: randomType(random, depth-1), Tag: reflect.StructTag(tag)})
		}
		return reflect.StructOf(fields)
	}
	return randomType(random, 0)
}

// fill sets v to something.
func fill(random *rand.Rand, v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(random.Int64N(1e10), random.Int64N(2)).UTC()))
		return
	case reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{1, byte(random.IntN(256))})))
		return
	case reflect.TypeFor[any]():
		v.Set(reflect.ValueOf([]any{nil, "x", 1.5, true, map[string]any{"a": []any{"<"}}}[random.IntN(4)+1]))
		return
	case reflect.TypeFor[json.RawMessage]():
		v.SetBytes([]byte(`{"a":[1]}`))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString([]string{"", "a", "é\n<\"", "\u2028", "\xff"}[random.IntN(5)])
	case reflect.Bool:
		v.SetBool(random.IntN(2) == 0)
	case reflect.Int, reflect.Int8, reflect.Int64:
		v.SetInt(int64(random.IntN(200) - 100))
	case reflect.Uint8, reflect.Uint16, reflect.Uint64:
		v.SetUint(uint64(random.IntN(200)))
	case reflect.Float32, reflect.Float64:
		v.SetFloat([]float64{0, -0.5, 1e-9, 3e30, 7}[random.IntN(5)])
	case reflect.Pointer:
		if random.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(random, v.Elem())
		}
	case reflect.Slice:
		n := random.IntN(7)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(random, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range random.IntN(3) {
			e := reflect.New(v.Type().Elem()).Elem()
			fill(random, e)
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint("k", i)), e)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if random.IntN(4) > 0 && v.Type().Field(i).IsExported() && !(v.Type() == reflect.TypeFor[node]() && i == 1) {
				fill(random, v.Field(i))
			}
		}
	}
}

// mutate changes a text a little: the result is still JSON, or of another type, or not JSON.
func mutate(random *rand.Rand, data []byte) []byte {
	data = bytes.Clone(data)
	for range random.IntN(3) {
		if len(data) == 0 {
			return data
		}
		i := random.IntN(len(data))
		const some = `{}[],:"0123456789.eE-+truefalsn \ax<` + "\x00\xff\n"
		switch random.IntN(4) {
		case 0:
			data[i] = some[random.IntN(len(some))]
		case 1:
			data = append(data[:i], data[i+1:]...)
		case 2:
			data = append(data[:i], append([]byte{some[random.IntN(len(some))]}, data[i:]...)...)
		case 3:
			j := i + random.IntN(len(data)-i)
			data = append(data[:j], append(bytes.Clone(data[i:j]), data[j:]...)...)
		}
	}
	return data
}

// TestRandomTypesAsEncodingJSON compares both directions for types, values and texts made at random.
func TestRandomTypesAsEncodingJSON(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 600 {
		typ := randomType(random, 3)
		p := jsonplan.Of(typ)
		v := reflect.New(typ)
		fill(random, v.Elem())
		want, wantErr := json.Marshal(v.Interface())
		got, err := p.Append(nil, v.UnsafePointer())
		if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%v\ngives %s, %v\nwant  %s, %v", typ, got, err, want, wantErr)
		}
		for range 20 {
			compareRandom(t, p, typ, mutate(random, want))
		}
	}
}

func compareRandom(t *testing.T, p *jsonplan.Plan, typ reflect.Type, data []byte) {
	t.Helper()
	want, got := reflect.New(typ), reflect.New(typ)
	wantErr := jsonv2.Unmarshal(data, want.Interface(), jsonplan.Options)
	d := jsonplan.Decoder{}
	err := d.Decode(p, data, unsafe.Pointer(got.Pointer()))
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q\ninto %v: %v, encoding/json: %v", data, typ, err, wantErr)
	}
	if err == nil && !reflect.DeepEqual(got.Interface(), want.Interface()) {
		t.Fatalf("%q\ninto %v\ngives %+v\nwant  %+v", data, typ, got.Elem(), want.Elem())
	}
}
