package route_test

import (
	"fmt"
	"mime/multipart"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/headpond/headpond/route"
)

// TestJSONTypeTakesNoForm: forms are for types that ask for them, whatever middleware has done; so a page of another site, which
// can send only forms and text unasked, does not reach an endpoint for JSON.
func TestJSONTypeTakesNoForm(t *testing.T) {
	type body struct {
		Name string `json:"name"`
	}
	called := 0
	send := serve(t, "POST /", func(_ *route.Ctx, req body) (string, error) { called++; return req.Name, nil }, route.MaxBody(1024))
	multi, large := form(t, "name", strings.Repeat("x", 9<<20))
	send("POST", "/", multi, large).want(t, 415, "application/json")
	for _, simple := range []string{"text/plain", formType, multi, "multipart/form-data; boundary=x", "", "text/plain; charset=application/json"} {
		for _, text := range []string{`{"name":"x"}`, `{"name":"x","=":"y"}`, "name=x"} {
			send("POST", "/", simple, text).want(t, 415)
		}
	}
	if called != 0 {
		t.Errorf("the handler was called %d times", called)
	}
	send("POST", "/", "", "").want(t, 201) // nothing of the body is needed
	lenient := serve(t, "POST /", func(_ *route.Ctx, req body) (string, error) { return req.Name, nil }, route.AssumeJSON())
	lenient("POST", "/", "", `{"name":"x"}`).want(t, 201, `"x"`)
	lenient("POST", "/", formType, `{"name":"x"}`).want(t, 415)
}

func TestFormFieldIsNotSetFromJSON(t *testing.T) {
	type body struct {
		Name  string `json:"name" form:"name"`
		Token string `form:"token"`
		Plain string `json:"plain" form:"-"`
	}
	send := serve(t, "POST /", func(_ *route.Ctx, req body) (string, error) { return fmt.Sprint(req), nil })
	send("POST", "/", jsonType, `{"name":"n","token":"t","Token":"t","plain":"p"}`).want(t, 201, `"{n  p}"`)
	send("POST", "/", formType, "name=n&token=t&plain=p&Plain=p&-=p").want(t, 201, `"{n t }"`)
	type forms struct {
		Token string `form:"token" validate:"required"`
	}
	only := serve(t, "POST /", func(_ *route.Ctx, req forms) (string, error) { return req.Token, nil })
	only("POST", "/", jsonType, `{"token":"t","Token":"t"}`).want(t, 415, formType)
	only("POST", "/", formType, "token=t").want(t, 201, `"t"`)
	server := httptest.NewServer(route.New(func(_ *route.Ctx, req body) (string, error) { return fmt.Sprint(req), nil }))
	defer server.Close()
	got, err := route.Call[body, string](t.Context(), &route.Client{BaseURL: server.URL}, "POST /", body{Name: "n", Token: "t"})
	if err != nil || got != "{n t }" {
		t.Errorf("a client's call: %q, %v", got, err)
	}
}

// TestMaxBodyBoundsForms: with files MaxUpload bounds the form, MaxBody the parts that are not
// files.
func TestMaxBodyBoundsForms(t *testing.T) {
	type values struct {
		Name string `form:"name"`
	}
	send := serve(t, "POST /", func(_ *route.Ctx, req values) (int, error) { return len(req.Name), nil }, route.MaxBody(1024))
	for size, status := range map[int]int{500: 201, 2000: 413, 9 << 20: 413} {
		contentType, body := form(t, "name", strings.Repeat("x", size))
		send("POST", "/", contentType, body).want(t, status)
	}
	type files struct {
		Name  string                `form:"name"`
		Photo *multipart.FileHeader `file:"photo"`
	}
	send = serve(t, "POST /", func(_ *route.Ctx, req files) (int64, error) { return int64(len(req.Name)) + req.Photo.Size, nil }, route.MaxBody(1024))
	contentType, body := form(t, "@photo", strings.Repeat("x", 5<<20), "name", "12345")
	send("POST", "/", contentType, body).want(t, 201, fmt.Sprint(5<<20+5))
	contentType, body = form(t, "@photo", "x", "name", strings.Repeat("x", 1025))
	send("POST", "/", contentType, body).want(t, 413)
}

// TestUnknownFilesAreNotKept: files without a field take neither memory nor a temporary file.
func TestUnknownFilesAreNotKept(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	temporary := func() int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		return len(entries)
	}
	type body struct {
		Name  string                `form:"name"`
		Photo *multipart.FileHeader `file:"photo"`
	}
	seen := -1
	send := serve(t, "POST /", func(_ *route.Ctx, req body) (string, error) {
		seen = temporary()
		if req.Photo != nil {
			return fmt.Sprint(req.Name, req.Photo.Size), nil
		}
		return req.Name, nil
	})
	large := strings.Repeat("x", 3<<20)
	contentType, text := form(t, "@other", large, "name", "a", "@another", large, "unknown", "value")
	if send("POST", "/", contentType, text).want(t, 201, `"a"`); seen != 0 {
		t.Errorf("%d temporary files for files that no field is for", seen)
	}
	contentType, text = form(t, "@other", large, "name", "a", "@photo", large, "@another", large)
	if send("POST", "/", contentType, text).want(t, 201, fmt.Sprintf(`"a%d"`, len(large))); seen != 1 {
		t.Errorf("%d temporary files for one file", seen)
	}
	if left := temporary(); left != 0 {
		t.Errorf("%d temporary files are left", left)
	}
}

// TestMalformedPart: MIME has no control characters in its headers, and a form may end too early; the answer
// distinguishes the two.
func TestMalformedPart(t *testing.T) {
	type values struct {
		Name string `form:"name"`
	}
	type files struct {
		Name  string `form:"name"`
		Files route.Files
	}
	for name, send := range map[string]func(method, target, contentType, body string, header ...string) answer{
		"values": serve(t, "POST /", func(_ *route.Ctx, req values) (string, error) { return req.Name, nil }),
		"files": serve(t, "POST /", func(_ *route.Ctx, req files) (string, error) {
			for _, err := range req.Files.All() {
				if err != nil {
					return "", err
				}
			}
			return req.Name, nil
		}),
	} {
		part := "--b\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nx\r\n"
		for body, want := range map[string]string{
			part + "--b\r\nContent-Disposition: form-data; name=\"\x16\"\r\n\r\nx\r\n--b--\r\n": "a part of the form has a malformed header",
			part: "the body could not be read to its end",
		} {
			t.Run(name, func(t *testing.T) {
				send("POST", "/", "multipart/form-data; boundary=b", body).want(t, 400, want)
			})
		}
	}
}
