package httpproxy_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// FuzzIncludeUsage: the server gets the client's object, with nothing changed but stream_options.include_usage, which is true
// if the object is one of a stream and could say so.
func FuzzIncludeUsage(f *testing.F) {
	for _, body := range []string{
		`{"stream":true}`, ` {"stream":true,"stream_options":{"a":[{}],"include_usage":false}}`, `{"stream_options": {  } ,"stream":true} x`,
		`{"stream_options":null,"a":{"stream":1},"stream":true}`, `{"stre\u0061m":true,"stream_options":[]}`, `{"stream":true,"stream_options":{"include_usage":1e3}}`,
		`{"stream":true,"stream_options":{"include_usage":"long"}}`, `{"stream":true,"stream":false}`, `{"Stream":true}`, `{"stream":"true"}`,
		`{"stream":true,"stream_options":-1}`, `{"stream":true,"stream_options":"null"}`, `{"stream":true,"stream_options":{"include_usage":null}}`, `{"stream":true,"stream_options":{"x":{"include_usage":true}}}`,
	} {
		f.Add([]byte(body), 0)
		f.Add([]byte(body), 2)
	}
	u := newUpstream(f, serveHTTP(f, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	p := startProxy(f, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, LLM: &httpproxy.LLM{IncludeUsage: true}}}})
	f.Fuzz(func(t *testing.T, body []byte, pieces int) {
		if len(body) == 0 || len(body) > 4096 || pieces < 0 || pieces > 4096 {
			return
		}
		resp, text := askInPieces(t, http.DefaultClient, p.url+"/completions", string(body), pieces)
		if resp.StatusCode == 400 { // a field is there twice
			return
		}
		got := []byte(text)
		var sent, came map[string]any
		if err := decodeFirst(body, &sent); err != nil || bytes.Equal(got, body) {
			if options, _ := sent["stream_options"].(map[string]any); err == nil && sent["stream"] == true && options["include_usage"] == false {
				t.Errorf("%q did not change", body)
			}
			if !bytes.Equal(got, body) {
				t.Errorf("%q, which is no object, came as %q", body, got)
			}
			return
		}
		if err := decodeFirst(got, &came); err != nil {
			t.Fatalf("%q came as %q: %v", body, got, err)
		}
		options, ok := came["stream_options"].(map[string]any)
		if !ok || options["include_usage"] != true || sent["stream"] != true {
			t.Errorf("%q came as %q", body, got)
		}
		was, _ := sent["stream_options"].(map[string]any)
		if v, ok := was["include_usage"]; ok {
			if v != nil && v != false {
				t.Errorf("%q came as %q", body, got)
			}
			options["include_usage"] = v
		} else {
			delete(options, "include_usage")
		}
		if len(options) == 0 {
			delete(came, "stream_options")
			if v := sent["stream_options"]; v == nil || was != nil && len(was) == 0 {
				delete(sent, "stream_options")
			}
		}
		if !reflect.DeepEqual(sent, came) {
			t.Errorf("%q came as %q", body, got)
		}
		if rest := strings.TrimSuffix(string(body), "}"); len(body)-len(rest) == 1 && !bytes.HasSuffix(got, []byte("}")) {
			t.Errorf("the end of %q is lost: %q", body, got)
		}
	})
}

// decodeFirst decodes the first value in b.
func decodeFirst(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(to)
}
