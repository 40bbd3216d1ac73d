package route_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"
	"github.com/go-playground/validator/v10"

	"github.com/headpond/headpond/route"
)

// texts has a field for each rule on text.
type texts struct {
	Email        string `json:"email" validate:"email"`
	URL          string `json:"url" validate:"url"`
	URI          string `json:"uri" validate:"uri"`
	HTTPURL      string `json:"http_url" validate:"http_url"`
	UUID         string `json:"uuid" validate:"uuid"`
	UUID3        string `json:"uuid3" validate:"uuid3"`
	UUID4        string `json:"uuid4" validate:"uuid4"`
	UUID5        string `json:"uuid5" validate:"uuid5"`
	Alpha        string `json:"alpha" validate:"alpha"`
	Alphanum     string `json:"alphanum" validate:"alphanum"`
	AlphaUni     string `json:"alphaunicode" validate:"alphaunicode"`
	AlphanumUni  string `json:"alphanumunicode" validate:"alphanumunicode"`
	ASCII        string `json:"ascii" validate:"ascii"`
	Print        string `json:"printascii" validate:"printascii"`
	Numeric      string `json:"numeric" validate:"numeric"`
	Number       string `json:"number" validate:"number"`
	Hexadecimal  string `json:"hexadecimal" validate:"hexadecimal"`
	Lower        string `json:"lowercase" validate:"lowercase"`
	Upper        string `json:"uppercase" validate:"uppercase"`
	Boolean      string `json:"boolean" validate:"boolean"`
	IP           string `json:"ip" validate:"ip"`
	IPv4         string `json:"ipv4" validate:"ipv4"`
	IPv6         string `json:"ipv6" validate:"ipv6"`
	CIDR         string `json:"cidr" validate:"cidr"`
	Hostname     string `json:"hostname" validate:"hostname_rfc1123"`
	E164         string `json:"e164" validate:"e164"`
	Base64       string `json:"base64" validate:"base64"`
	JSON         string `json:"json" validate:"json"`
	Contains     string `json:"contains" validate:"contains=@"`
	ContainsAny  string `json:"containsany" validate:"containsany=.0"`
	Excludes     string `json:"excludes" validate:"excludes=a"`
	ExcludesAll  string `json:"excludesall" validate:"excludesall=.0"`
	StartsWith   string `json:"startswith" validate:"startswith=a"`
	EndsWith     string `json:"endswith" validate:"endswith=m"`
	Datetime     string `json:"datetime" validate:"datetime=2006-01-02"`
	Required     string `json:"required" validate:"required"`
	Min          string `json:"min" validate:"min=3"`
	Max          string `json:"max" validate:"max=12"`
	Len          string `json:"len" validate:"len=4"`
	Eq           string `json:"eq" validate:"eq=true"`
	Ne           string `json:"ne" validate:"ne=true"`
	Gt           string `json:"gt" validate:"gt=0x3"`
	Lt           string `json:"lt" validate:"lt=8"`
	OneOf        string `json:"oneof" validate:"oneof=a 'b c' true"`
	Comma        string `json:"comma" validate:"containsany=0x2C0x7C"`
	Or           string `json:"or" validate:"email|uuid|len=1"`
	OmitThenMore string `json:"more" validate:"omitempty,min=3,alpha"`
	Default      string `json:"default" validate:"isdefault"`
}

// numbers has the rules on other types, and collections.
type numbers struct {
	I     int               `json:"i" validate:"min=-1,max=2"`
	I8    int8              `json:"i8" validate:"required,lt=2"`
	U     uint              `json:"u" validate:"gt=1"`
	F     float64           `json:"f" validate:"gte=0.5,lte=1.5"`
	B     bool              `json:"b" validate:"required"`
	Eq    int               `json:"eq" validate:"eq=1"`
	Ne    uint8             `json:"ne" validate:"ne=1"`
	One   int               `json:"one" validate:"oneof=1 2"`
	OneU  uint16            `json:"oneu" validate:"omitempty,oneof=1 2"`
	Took  time.Duration     `json:"took" validate:"max=1s"`
	When  time.Time         `json:"when" validate:"omitempty,lt"`
	P     *int              `json:"p" validate:"required,min=1"`
	PO    *string           `json:"po" validate:"omitempty,min=2"`
	PN    *int              `json:"pn" validate:"omitnil,min=1"`
	PM    *int              `json:"pm" validate:"min=1"`
	Z     int               `json:"z" validate:"omitzero,min=2"`
	S     []string          `json:"s" validate:"required,min=1,max=2,dive,required,max=2"`
	SS    [][]int           `json:"ss" validate:"dive,min=1,dive,min=1"`
	SP    []*int            `json:"sp" validate:"dive,required,min=1"`
	SO    []string          `json:"so" validate:"omitempty,unique"`
	M     map[string]int    `json:"m" validate:"max=2,dive,min=1"`
	MS    map[string]*inner `json:"ms" validate:"dive"`
	MK    map[string]int    `json:"mk" validate:"dive,keys,min=1,max=2,endkeys,min=1"`
	N     inner             `json:"n"`
	NR    inner             `json:"nr" validate:"required"`
	NP    *inner            `json:"np"`
	NPR   *inner            `json:"npr" validate:"required"`
	NS    []inner           `json:"ns" validate:"dive"`
	NX    []inner           `json:"nx"`
	Loop  *loop             `json:"loop" validate:"omitempty"`
	A     string            `json:"a" validate:"eqfield=Other"`
	Other string            `json:"other" validate:"nefield=A2"`
	A2    string            `json:"a2" validate:"gtefield=Other"`
	I2    int               `json:"i2" validate:"gtfield=I"`
	I3    int               `json:"i3" validate:"ltefield=I2"`
	Skip  inner             `json:"skip" validate:"-"`
	Or    int               `json:"or" validate:"eq=1|gt=2"`
}

type inner struct {
	X string `json:"x" validate:"required,max=2"`
	Y int    `json:"y" validate:"max=1"`
}

type loop struct {
	X    int   `json:"x" validate:"max=1"`
	Next *loop `json:"next"`
}

// theirs is the validator configured for the meaning of route's rules.
var theirs = func() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(func(f reflect.StructField) string { return f.Tag.Get("json") })
	return v
}()

var subscript = regexp.MustCompile(`\[([^\]]*)\]`)

// theirViolations are what validator finds: "#/pointer rule".
func theirViolations(v any) []string {
	var errs validator.ValidationErrors
	errors.As(theirs.Struct(v), &errs)
	list := []string{}
	for _, e := range errs {
		_, name, _ := strings.Cut(subscript.ReplaceAllString(e.Namespace(), ".$1"), ".")
		list = append(list, "#/"+strings.ReplaceAll(name, ".", "/")+" "+e.Tag())
	}
	slices.Sort(list)
	return list
}

// ourViolations sends the body to a handler and returns the violations it reports.
func ourViolations(t testing.TB, h http.Handler, contentType string, body []byte) []string {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(body)))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code == http.StatusNoContent {
		return []string{}
	}
	var p route.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusUnprocessableEntity {
		t.Fatalf("status %d, %v: %s\nfor %s", w.Code, err, w.Body, body)
	}
	list := []string{}
	for _, e := range p.Errors {
		list = append(list, e.Pointer+" "+e.Rule)
	}
	slices.Sort(list)
	return list
}

func checker[T any]() http.Handler {
	return route.New(func(*route.Ctx, T) (struct{}, error) { return struct{}{}, nil }, route.Status(http.StatusNoContent))
}

var (
	checkTexts   = checker[texts]()
	checkNumbers = checker[numbers]()
)

// seeds are texts near the edges of the rules.
var seeds = []string{
	"", "a", "ab", "abc", "abcd", "ABC", "aé", "日本", "日本語1", "0", "12", "-12", "+1.5", "1.", ".5", "1e5", "0x1F", "0xg", "true", "TRUE", "T", "b c",
	"a@b.co", "a.b@c.de", "a..b@c.de", ".a@c.de", "a.@c.de", "a@b", "a@b.c", "a@b.1", "a@1.b", "a@b.c.", "a@-b.c", "a@b-.c", "a@b.-c", "a@b.c-", "a@b_c.d", "a@b..c", "a@.b", "@b.c", "a b@c.d", "a@b.c d",
	"A <a@b.c>", "<a@b.c>", `"a b"@c.de`, `"a"@c.de`, `"a\"b"@c.de`, `""@c.de`, `"@c.de`, `"a@c.de`, `a"b@c.de`, "a@[1.2.3.4]", "é@ü.de", "a@日本.jp", "a@b.é", "a@b.co, c@d.e", "a+b@c.de", "a~!#$%&'*/=?^_`{|}~@b.cd", "a@b~c.de", "a@~b.cd", "a@b.c~d", "a@b.-.c", "a@b.c\u2028", "a@\u0080.de", "x@y.z,", "(c)a@b.cd", "a@b.cd(c)",
	"http://a.b", "HTTP://A.b/c?d#e", "http://", "http:///x", "mailto:a@b.c", "file:///", "file:///x", "file:", "//a/b", "/a/b", "a:b", "#x", "http://a b", "http://[::1]:80/", "http://%zz", "ftp://x/", "https://x:y", "urn:x#y",
	"12345678-1234-1234-1234-123456789abc", "12345678-1234-3234-1234-123456789abc", "12345678-1234-4234-8234-123456789abc", "12345678-1234-5234-b234-123456789abc", "12345678-1234-4234-8234-123456789ABC", "123456781234-1234-1234-123456789abcd", "g2345678-1234-1234-1234-123456789abc",
	"1.2.3.4", "1.2.3.256", "::1", "::ffff:1.2.3.4", "fe80::1%eth0", "1.2.3.4/24", "::/0", "1.2.3.4/33", "a.b.c", "-a.b", "a-.b", "a_b", strings.Repeat("a", 63) + ".b", strings.Repeat("a", 64), "a..b", "a.",
	"+4930123456", "4930123456", "+0123456789", "+1234567", "1234567890123456", "YWI=", "YWJj", "YW", "YWI", "Y=WI", "YWJj\n", "{}", "[1", "nul", "2026-01-31", "2026-02-31", "a,b", "a|b", "\t", "a\n", "\u007f", "\u00a0", "ß", "ǅ", "①", "٣",
}

func compareTexts(t *testing.T, s string) {
	t.Helper()
	var v texts
	e := reflect.ValueOf(&v).Elem()
	for i := range e.NumField() {
		e.Field(i).SetString(s)
	}
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &v); err != nil { // decoding replaces bytes that are not UTF-8
		t.Fatal(err)
	}
	if ours, theirs := ourViolations(t, checkTexts, "application/json", body), theirViolations(v); !slices.Equal(ours, theirs) {
		t.Errorf("%q\nours   %v\ntheirs %v", s, difference(ours, theirs), difference(theirs, ours))
	}
}

// difference returns the elements of a that are not in b.
func difference(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

func TestTextRulesAgreeWithValidator(t *testing.T) {
	for _, s := range seeds {
		compareTexts(t, s)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		compareTexts(t, mutate(random))
	}
}

func FuzzTextRules(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(compareTexts)
}

// mutate makes a text from parts of two seeds.
func mutate(random *rand.Rand) string {
	a, b := seeds[random.IntN(len(seeds))], seeds[random.IntN(len(seeds))]
	a, b = a[:random.IntN(len(a)+1)], b[random.IntN(len(b)+1):]
	if random.IntN(2) == 0 {
		const some = "@.-\" a1~\\é<>()[],;:%#/"
		i := random.IntN(len(some))
		a += some[i : i+1]
	}
	return a + b
}

func TestStructuresAgreeWithValidator(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 4000 {
		body := object(random, reflect.TypeFor[numbers](), 0)
		var v numbers
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if ours, theirs := ourViolations(t, checkNumbers, "application/json", []byte(body)), theirViolations(v); !slices.Equal(ours, theirs) {
			t.Fatalf("%s\nours   %v\ntheirs %v", body, difference(ours, theirs), difference(theirs, ours))
		}
	}
}

// object writes JSON for a type, with values around the bounds of its rules.
func object(random *rand.Rand, t reflect.Type, depth int) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return []string{`"0001-01-01T00:00:00Z"`, `"2000-01-01T00:00:00Z"`, `"2900-01-01T00:00:00Z"`}[random.IntN(3)]
	case reflect.TypeFor[time.Duration]():
		return []string{"0", "1000000000", "1000000001"}[random.IntN(3)]
	}
	several := func(open, end string, one func(i int) string) string {
		var parts []string
		for i := range random.IntN(4) {
			parts = append(parts, one(i))
		}
		return open + strings.Join(parts, ",") + end
	}
	switch t.Kind() {
	case reflect.Struct:
		var parts []string
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && random.IntN(4) > 0 && depth < 5 {
				parts = append(parts, fmt.Sprintf("%q:%s", f.Tag.Get("json"), object(random, f.Type, depth+1)))
			}
		}
		return "{" + strings.Join(parts, ",") + "}"
	case reflect.Pointer:
		if random.IntN(4) == 0 {
			return "null"
		}
		return object(random, t.Elem(), depth)
	case reflect.Slice:
		if random.IntN(4) == 0 {
			return "null"
		}
		return several("[", "]", func(int) string { return object(random, t.Elem(), depth+1) })
	case reflect.Map:
		return several("{", "}", func(i int) string { return fmt.Sprintf(`"k%d":%s`, i, object(random, t.Elem(), depth+1)) })
	case reflect.String:
		return []string{`""`, `"a"`, `"ab"`, `"abc"`, `"éé"`}[random.IntN(5)]
	case reflect.Bool:
		return []string{"true", "false"}[random.IntN(2)]
	case reflect.Float64:
		return []string{"0", "0.5", "1", "1.5", "1.51", "-0"}[random.IntN(6)]
	case reflect.Uint, reflect.Uint8, reflect.Uint16:
		return fmt.Sprint(random.IntN(4))
	}
	return fmt.Sprint(random.IntN(6) - 2)
}

// bound is a request with a field from every source that gin also has.
type bound struct {
	Name  string    `form:"name" json:"name" binding:"required"`
	Age   int8      `form:"age" json:"age" binding:"min=-5,max=100"`
	Big   uint64    `form:"big" json:"big"`
	Ratio float32   `form:"ratio" json:"ratio"`
	Flag  bool      `form:"flag" json:"flag"`
	Tags  []string  `form:"tags" json:"tags"`
	List  []int     `form:"list" json:"list"`
	Ptr   *int      `form:"ptr" json:"ptr"`
	When  time.Time `form:"when" json:"when"`
}

// TestBindingAgreesWithGin compares the values that the handlers of both get, for JSON and forms.
func TestBindingAgreesWithGin(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	var got bound
	ours := route.New(func(_ *route.Ctx, req bound) (struct{}, error) { got = req; return struct{}{}, nil })
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 4000 {
		contentType, body := "application/json", object(random, reflect.TypeFor[bound](), 0)
		if i%2 == 0 {
			contentType, body = "application/x-www-form-urlencoded", randomForm(random)
		}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		var want bound
		wantErr := binding.Default(r.Method, contentType).Bind(r, &want)
		got = bound{}
		r = httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		ours.ServeHTTP(w, r)
		if (wantErr == nil) != (w.Code < 300) {
			t.Fatalf("%s: status %d %s, gin: %v", body, w.Code, w.Body, wantErr)
		}
		if wantErr == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngives %+v\ngin   %+v", body, got, want)
		}
	}
}

func randomForm(random *rand.Rand) string {
	values := map[string][]string{
		"name": {"", "x", "Ada+L", "%C3%A9", "a%3Db"}, "age": {"", "0", "-6", "100", "101", "128", "x", "1.5", "07", "+3"}, "big": {"", "0", "18446744073709551615", "18446744073709551616", "-1"},
		"ratio": {"", "1.5", "1e3", "x"}, "flag": {"", "true", "0", "T", "yes"}, "tags": {"", "a", "b,c"}, "list": {"1", "-2", "x"}, "ptr": {"1", "x"},
		"when": {"", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5+02:00", "x"}, "unknown": {"1"},
	}
	var pairs []string
	for _, name := range []string{"name", "age", "big", "ratio", "flag", "tags", "list", "ptr", "when", "unknown", "tags", "list"} {
		if random.IntN(3) > 0 {
			list := values[name]
			text := list[random.IntN(len(list))]
			if random.IntN(3) > 0 { // mostly valid values, so that enough forms are valid
				text = list[min(1, len(list)-1)]
			}
			pairs = append(pairs, name+"="+text)
		}
	}
	return strings.Join(pairs, "&")
}
