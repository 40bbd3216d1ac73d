package route_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/route"
)

type told struct {
	ID   string            `path:"id"`
	Q    string            `query:"q"`
	H    string            `header:"X-H"`
	Text string            `json:"text" form:"text" validate:"max=40"`
	List []string          `json:"list" form:"list"`
	Map  map[string]string `json:"map,omitempty"`
	Sub  *told             `json:"sub,omitempty"`
}

// Requests of every kind, including failing ones, reuse the same exchanges, and each sees only its own data.
func TestEveryRequestGetsItsOwn(t *testing.T) {
	mux := http.NewServeMux()
	route.Handle(mux, "POST /{id}", func(c *route.Ctx, req told) (told, error) {
		switch {
		case strings.HasPrefix(req.Text, "fail"):
			return req, route.Errorf(409, "no %s", req.ID)
		case strings.HasPrefix(req.Text, "panic"):
			c.SetStatus(299)
			panic(http.ErrAbortHandler)
		case strings.HasPrefix(req.Text, "teapot"):
			c.SetStatus(418)
		}
		return req, nil
	})
	route.Handle(mux, "POST /stream/{id}", func(c *route.Ctx, req told) (route.Stream, error) {
		return route.Stream{Write: func(w io.Writer) error {
			for range 3 {
				fmt.Fprint(w, c.Request().PathValue("id"), req.Text)
			}
			return nil
		}}, nil
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := range 60 {
				if err := oneRequest(t.Context(), server, i%10, fmt.Sprintf("%d-%d", g, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// oneRequest sends a request of a kind and checks the response.
func oneRequest(ctx context.Context, server *httptest.Server, kind int, id string) error {
	json := func(text string) string {
		return fmt.Sprintf(`{"text":%q,"list":["a%s"],"map":{"k":%q},"sub":{"text":"s%s"}}`, text, id, id, id)
	}
	whole := func(text string) string {
		return fmt.Sprintf(`{"ID":%q,"Q":"q%s","H":"h%s","text":%q,"list":["a%s"],"map":{"k":%q},"sub":{"ID":"","Q":"","H":"","text":"s%s","list":null}}`, id, id, id, text, id, id, id)
	}
	path, contentType, body, status, want := "/"+id, jsonType, json("x"+id), 201, whole("x"+id)
	switch kind {
	case 0:
		body, status, want = json("fail"), 409, `"no `+id+`"`
	case 1:
		body, status = json("panic"), 0
	case 2:
		body, status, want = json("teapot"), 418, whole("teapot")
	case 3:
		body, status, want = json(strings.Repeat(id, 40)), 422, `"#/text"`
	case 4:
		body, status, want = json("x")[:20], 400, "cannot be read"
	case 5:
		contentType, body, want = formType, "text=x%20"+id+"&list=a"+id, fmt.Sprintf(`{"ID":%q,"Q":"q%s","H":"h%s","text":"x %s","list":["a%s"]}`, id, id, id, id, id)
	case 6:
		path, status, want = "/stream/"+id, 200, strings.Repeat(id+"x"+id, 3)
	case 7:
		body, status, want = `{}`, 201, fmt.Sprintf(`{"ID":%q,"Q":"q%s","H":"h%s","text":"","list":null}`, id, id, id)
	case 8:
		return halfARequest(server)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", server.URL+path+"?q=q"+id, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("X-H", "h"+id)
	resp, err := server.Client().Do(r)
	if status == 0 {
		if err == nil {
			err = errors.New("a panic with http.ErrAbortHandler was answered")
			resp.Body.Close()
			return err
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if got := string(b); err != nil || resp.StatusCode != status || got != want && (status < 400 || status == 418 || !strings.Contains(got, want)) {
		return fmt.Errorf("kind %d, %s: %d %s, %w, want %d %s", kind, id, resp.StatusCode, got, err, status, want)
	}
	return nil
}

// halfARequest goes away within its body.
func halfARequest(server *httptest.Server) error {
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		return err
	}
	_, err = io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"text\":\"left ov")
	return errors.Join(err, conn.Close())
}
