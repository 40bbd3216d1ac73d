package route_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/headpond/headpond/route"
)

func TestStreams(t *testing.T) {
	closed := make(chan struct{})
	body := serve(t, "GET /", func(*route.Ctx, struct{}) (route.Stream, error) {
		return route.Stream{ContentType: "text/csv", Size: 3, Body: closer{strings.NewReader("a,b"), closed}}, nil
	})
	a := body("GET", "/", "", "", "Accept", "text/csv")
	if a.want(t, 200, "a,b"); a.header.Get("Content-Type") != "text/csv" || a.header.Get("Content-Length") != "3" {
		t.Errorf("header %v", a.header)
	}
	<-closed
	write := serve(t, "GET /", func(c *route.Ctx, _ struct{}) (route.Stream, error) {
		return route.Stream{Write: func(w io.Writer) error {
			_, err := io.WriteString(w, c.Route()) // still valid
			return err
		}}, nil
	})
	write("GET", "/", "", "").want(t, 200, "GET /")
	write("HEAD", "/", "", "").want(t, 200)
	serve(t, "GET /", func(*route.Ctx, struct{}) (route.Stream, error) { return route.Stream{}, nil })("GET", "/", "", "").want(t, 200)
}

type closer struct {
	io.Reader
	closed chan struct{}
}

func (c closer) Close() error { close(c.closed); return nil }

// A client can tell a stream that failed from one that has ended.
func TestAStreamThatFailsIsCutOff(t *testing.T) {
	for name, end := range map[string]func() error{"error": func() error { return errors.New("broken") }, "panic": func() error { panic("broken") }} {
		server := httptest.NewServer(route.New(func(*route.Ctx, struct{}) (route.Stream, error) {
			return route.Stream{Write: func(w io.Writer) error {
				_, _ = io.WriteString(w, strings.Repeat("x", 1<<16))
				return end()
			}}, nil
		}, quiet))
		defer server.Close()
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: the response ends as if it were whole", name)
		}
	}
}

func TestFiles(t *testing.T) {
	files := fstest.MapFS{"a.txt": {Data: []byte("0123456789"), ModTime: time.Unix(1e9, 0)}, "dir/x": {}}
	send := serve(t, "GET /{name}", func(_ *route.Ctx, req struct {
		Name string `path:"name"`
	}) (route.File, error) {
		return route.File{FS: files, Name: req.Name, Download: "b ü.txt"}, nil
	})
	a := send("GET", "/a.txt", "", "")
	a.want(t, 200, "0123456789")
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") || !strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment;") {
		t.Errorf("header %v", a.header)
	}
	if a := send("GET", "/a.txt", "", "", "Range", "bytes=2-3"); a.status != 206 || a.body != "23" {
		t.Errorf("a range: %+v", a)
	}
	send("GET", "/a.txt", "", "", "If-Modified-Since", a.header.Get("Last-Modified")).want(t, 304)
	send("GET", "/none", "", "").want(t, 404)
	send("GET", "/dir", "", "").want(t, 404)
	send("GET", "/%2E%2E", "", "").want(t, 404)
	content := serve(t, "GET /", func(*route.Ctx, struct{}) (route.File, error) {
		return route.File{Content: bytes.NewReader([]byte("{}")), Name: "x.json"}, nil
	})("GET", "/", "", "")
	if content.want(t, 200, "{}"); content.header.Get("Content-Type") != jsonType {
		t.Errorf("header %v", content.header)
	}
	quiet := route.Logger(slog.New(slog.DiscardHandler))
	serve(t, "GET /", func(*route.Ctx, struct{}) (route.File, error) { return route.File{}, nil }, quiet)("GET", "/", "", "").want(t, 500)
}

func TestEventsArriveAsTheyAreSent(t *testing.T) {
	proceed := make(chan struct{})
	ended := make(chan error, 1)
	server := httptest.NewServer(route.New(func(*route.Ctx, struct{}) (route.Events, error) {
		return func(ctx context.Context, send func(route.Event) error) error {
			if err := send(route.Event{ID: "1", Name: "greeting", Data: map[string]string{"a": "b"}, Retry: time.Second}); err != nil {
				return err
			}
			<-proceed
			if send(route.Event{ID: "a\nb"}) == nil {
				t.Error("an id with a line break was sent")
			}
			if err := send(route.Event{Data: "two\r\nlines"}); err != nil {
				return err
			}
			<-ctx.Done()
			ended <- ctx.Err()
			return nil
		}, nil
	}))
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("Content-Type %q", ct)
	}
	lines := bufio.NewReader(resp.Body)
	next := func() string {
		var event strings.Builder
		for {
			line, err := lines.ReadString('\n')
			if err != nil || line == "\n" {
				return event.String()
			}
			event.WriteString(line)
		}
	}
	if got, want := next(), "id: 1\nevent: greeting\nretry: 1000\ndata: {\"a\":\"b\"}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	close(proceed)
	if got, want := next(), "data: two\ndata: lines\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	resp.Body.Close()
	if err := <-ended; err == nil {
		t.Error("the context is not done when the client has gone")
	}
}

// form writes a multipart form: name, text, or name, file name, text where the name begins with @.
func form(t *testing.T, parts ...string) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		if name, ok := strings.CutPrefix(parts[i], "@"); ok {
			f, err := w.CreateFormFile(name, name+".txt")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(f, parts[i+1])
		} else if err := w.WriteField(parts[i], parts[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	return w.FormDataContentType(), b.String()
}

type avatar struct {
	Name   string                  `form:"name" validate:"required"`
	Tags   []string                `form:"tag"`
	Photo  *multipart.FileHeader   `file:"photo" validate:"required"`
	Others []*multipart.FileHeader `file:"other"`
}

func TestMultipartFormsWithFiles(t *testing.T) {
	send := serve(t, "POST /", func(_ *route.Ctx, req avatar) (string, error) {
		f, err := req.Photo.Open()
		if err != nil {
			return "", err
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		return strings.Join(append(req.Tags, req.Name, req.Photo.Filename, string(b)), " ") + strings.Repeat("+", len(req.Others)), err
	}, route.MaxFiles(3), route.MaxFields(3), route.MaxUpload(4<<20))
	contentType, body := form(t, "name", "Ada", "name", "Eve", "tag", "x", "@photo", "pixels", "@other", "1", "@other", "2")
	send("POST", "/", contentType, body).want(t, 201, `"x Ada photo.txt pixels++"`)
	contentType, body = form(t, "name", "Ada", "@photo", strings.Repeat("x", 3<<20))
	send("POST", "/", contentType, body).want(t, 201, "xxx") // by way of the disk
	contentType, body = form(t, "tag", "x")
	send("POST", "/", contentType, body).want(t, 422, "#/name", `"in":"file","name":"photo","rule":"required"`)
	contentType, body = form(t, "@photo", "1", "@other", "1", "@other", "1", "@other", "1")
	send("POST", "/", contentType, body).want(t, 413, "more than 3 files")
	contentType, body = form(t, "name", "1", "tag", "1", "tag", "1", "tag", "1")
	send("POST", "/", contentType, body).want(t, 413, "fields")
	contentType, body = form(t, "name", "Ada", "@photo", strings.Repeat("x", 5<<20))
	send("POST", "/", contentType, body).want(t, 413, "too large")
	send("POST", "/", "multipart/form-data", "x").want(t, 400, "boundary")
	send("POST", "/", "multipart/form-data; boundary=x", "--x\r\nbad").want(t, 400)
	send("POST", "/", jsonType, "{}").want(t, 415, "multipart/form-data")
}

func TestFilesStream(t *testing.T) {
	type upload struct {
		Name  string `form:"name" validate:"required"`
		Files route.Files
	}
	send := serve(t, "POST /", func(_ *route.Ctx, req upload) (string, error) {
		got := req.Name
		for f, err := range req.Files.All() {
			if err != nil {
				return "", err
			}
			b, err := io.ReadAll(f)
			if err != nil {
				return "", err
			}
			got += " " + f.Field + "=" + f.Name + ":" + string(b)
		}
		return got, nil
	}, route.MaxFiles(2), route.MaxUpload(1<<20), route.MaxFields(2), route.MaxBody(100))
	contentType, body := form(t, "name", "Ada", "name", "Eve", "@a", "1", "@b", "2")
	send("POST", "/", contentType, body).want(t, 201, `"Ada a=a.txt:1 b=b.txt:2"`)
	contentType, body = form(t, "name", "Ada")
	send("POST", "/", contentType, body).want(t, 201, `"Ada"`)
	contentType, body = form(t, "@a", "1")
	send("POST", "/", contentType, body).want(t, 422, "#/name")
	contentType, body = form(t, "name", "Ada", "@a", "1", "late", "x")
	send("POST", "/", contentType, body).want(t, 400, "after a file")
	contentType, body = form(t, "name", "Ada", "@a", "1", "@a", "1", "@a", "1")
	send("POST", "/", contentType, body).want(t, 413, "more than 2 files")
	contentType, body = form(t, "name", "Ada", "@a", strings.Repeat("x", 2<<20))
	send("POST", "/", contentType, body).want(t, 413)
	contentType, body = form(t, "name", strings.Repeat("x", 101))
	send("POST", "/", contentType, body).want(t, 413)
	contentType, body = form(t, "name", "1", "a", "2", "b", "3")
	send("POST", "/", contentType, body).want(t, 413)
	send("POST", "/", "multipart/form-data; boundary=x", "--x\r\nbad").want(t, 400)
	send("POST", "/", formType, "name=Ada").want(t, 201, `"Ada"`)
}

// A body that takes too long is refused.
func TestBodyTimeout(t *testing.T) {
	type body struct {
		A int `json:"a"`
	}
	server := httptest.NewServer(route.New(func(_ *route.Ctx, req body) (int, error) { return req.A, nil }, route.BodyTimeout(500*time.Millisecond)))
	defer server.Close()
	slow, client := io.Pipe()
	defer client.Close()
	resp, err := server.Client().Post(server.URL, jsonType, io.MultiReader(strings.NewReader(`{"a":`), slow))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d", resp.StatusCode)
	}
	for try := 1; ; try++ { // half a second may be too short on a busy machine
		quick, err := server.Client().Post(server.URL, jsonType, strings.NewReader(`{"a":1}`))
		if err != nil {
			t.Fatal(err)
		}
		quick.Body.Close()
		if quick.StatusCode == 201 {
			break
		}
		if quick.StatusCode != http.StatusRequestTimeout || try == 10 {
			t.Fatalf("try %d: %s", try, quick.Status)
		}
	}
}
