package route_test

import (
	"encoding/json"
	jsonv2 "encoding/json/v2"
	"mime"
	"mime/multipart"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/headpond/headpond/route"
	"github.com/headpond/headpond/route/internal/jsonplan"
)

type fuzzed struct {
	A string   `json:"a" form:"a"`
	B int8     `json:"b" form:"b"`
	C []string `json:"c" form:"c"`
	D bool     `json:"d" form:"d"`
}

// bound is the value that a handler got, and the status of the response.
func bound(contentType, body string) (fuzzed, int) {
	var got fuzzed
	h := route.New(func(_ *route.Ctx, req fuzzed) (struct{}, error) { got = req; return struct{}{}, nil }, route.MaxFields(100))
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return got, w.Code
}

// fromValues is the value of the form by net/url and strconv; false if it must be refused.
func fromValues(v url.Values) (want fuzzed, ok bool) {
	want.A, want.C = v.Get("a"), v["c"]
	if s := strings.TrimSpace(v.Get("b")); s != "" {
		n, err := strconv.ParseInt(s, 10, 8)
		if err != nil {
			return want, false
		}
		want.B = int8(n)
	}
	if s := strings.TrimSpace(v.Get("d")); s != "" {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return want, false
		}
		want.D = b
	}
	return want, true
}

func FuzzForm(f *testing.F) {
	for _, s := range []string{"a=x&b=1&c=1&c=2&d=true", "a=%41+b&a=2", "b=", "b=128", "a", "=x", "&&", "a=%4", "c=%zz&x=%zz", "a;b", "%61=1", "a=\xff", "a=b=c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if strings.Count(body, "&") > 50 {
			return
		}
		values, err := url.ParseQuery(body)
		want, ok := fromValues(values)
		got, code := bound(formType, body)
		if ok = ok && err == nil; ok != (code < 300) {
			t.Fatalf("%q: status %d, want ok = %v (%v)", body, code, ok, err)
		}
		if ok && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q gives %+v, want %+v", body, got, want)
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":"x","b":1,"c":["1"],"d":true}`, `{"a":"\u0041"}`, `{"b":128}`, `{"x":[{}]}`, `null`, ` `, `{"a":1}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var want fuzzed
		err := jsonv2.Unmarshal([]byte(body), &want, jsonplan.Options)
		if body == "" {
			err = nil
		}
		if strings.Count(body, "[")+strings.Count(body, "{") >= route.DefaultMaxDepth {
			return
		}
		got, code := bound(jsonType, body)
		if (err == nil) != (code < 300) {
			t.Fatalf("%q: status %d, encoding/json: %v", body, code, err)
		}
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q gives %+v, want %+v", body, got, want)
		}
	})
}

func FuzzMultipart(f *testing.F) {
	f.Add("--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nhello\r\n--x\r\nContent-Disposition: form-data; name=\"b\"\r\n\r\n7\r\n--x--\r\n")
	f.Add("--x\r\nContent-Disposition: form-data; name=\"c\"; filename=\"f\"\r\n\r\nhello\r\n--x--")
	f.Add("--x\r\n\r\n--x--")
	f.Fuzz(func(t *testing.T, body string) {
		const contentType = "multipart/form-data; boundary=x"
		_, params, _ := mime.ParseMediaType(contentType)
		form, err := multipart.NewReader(strings.NewReader(body), params["boundary"]).ReadForm(1 << 20)
		ok := err == nil
		var want fuzzed
		if ok {
			defer form.RemoveAll()
			if len(form.File) > 0 || len(form.Value) > 20 {
				return
			}
			want, ok = fromValues(form.Value)
		}
		got, code := bound(contentType, body)
		if ok != (code < 300) {
			t.Fatalf("%q: status %d, want ok = %v (%v)", body, code, ok, err)
		}
		if ok && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q gives %+v, want %+v", body, got, want)
		}
	})
}

// Whatever is wrong with a request, the answer is a well-formed problem.
func FuzzProblems(f *testing.F) {
	f.Add("/x?page=-1&size=y", "X", `{"a":1}`)
	f.Fuzz(func(t *testing.T, query, header, body string) {
		type request struct {
			paging
			Header string `header:"X-H" validate:"required,email"`
			Body   struct {
				Names map[string]string `json:"names" validate:"dive,len=3"`
			} `json:"body"`
		}
		h := route.New(func(*route.Ctx, request) (struct{}, error) { return struct{}{}, nil })
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.URL.RawQuery = query
		r.Header["X-H"] = []string{header}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code < 300 {
			return
		}
		var p route.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != w.Code || p.Title == "" || w.Code == 500 {
			t.Fatalf("status %d, %+v, %v: %s", w.Code, p, err, w.Body)
		}
	})
}
