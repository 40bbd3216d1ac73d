package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/route"
)

// start serves the service on a new file.
func start(t *testing.T) *route.Client {
	t.Helper()
	users, err := openStore(t.Context(), filepath.Join(t.TempDir(), "users.db"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(newHandler(users))
	t.Cleanup(func() {
		server.Close()
		users.close()
	})
	return &route.Client{BaseURL: server.URL, HTTP: server.Client()}
}

// status returns the status of a problem, 0 for other errors.
func status(err error) int {
	if p, ok := errors.AsType[*route.Problem](err); ok {
		return p.Status
	}
	return 0
}

func TestLifeOfAUser(t *testing.T) {
	c, ctx := start(t), t.Context()
	ada, err := route.Call[CreateUser, User](ctx, c, "POST /api/users", CreateUser{Name: "Ada", Email: "ada@example.com", Age: 36})
	if err != nil || ada.ID != 1 || ada.Name != "Ada" {
		t.Fatalf("%+v, %v", ada, err)
	}
	if _, err := route.Call[CreateUser, User](ctx, c, "POST /api/users", CreateUser{Name: "Eve", Email: "ada@example.com"}); status(err) != http.StatusConflict {
		t.Errorf("a second user with the address: %v", err)
	}
	if _, err := route.Call[CreateUser, User](ctx, c, "POST /api/users", CreateUser{Name: "Eve", Email: "eve", Age: 151}); status(err) != http.StatusUnprocessableEntity {
		t.Errorf("an invalid user: %v", err)
	}
	name := "Ada Lovelace"
	if u, err := route.Call[UpdateUser, User](ctx, c, "PATCH /api/users/{id}", UpdateUser{UserID: UserID{1}, Name: &name}); err != nil || u.Name != name || u.Age != 36 {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := route.Call[UserID, User](ctx, c, "GET /api/users/{id}", UserID{1}); err != nil || u.Name != name {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := route.Call[UserID, struct{}](ctx, c, "DELETE /api/users/{id}", UserID{1}); err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{"GET /api/users/{id}", "DELETE /api/users/{id}", "PATCH /api/users/{id}"} {
		if _, err := route.Call[UserID, struct{}](ctx, c, pattern, UserID{1}); status(err) != http.StatusNotFound && pattern[0] != 'P' {
			t.Errorf("%s of a user that is gone: %v", pattern, err)
		}
	}
}

func TestDocumentIsWhatIsAccepted(t *testing.T) {
	clienttest.OpenAPI(t, start(t).BaseURL+"/docs/openapi.json")
}

func TestPagesAndExport(t *testing.T) {
	c, ctx := start(t), t.Context()
	for i := range 25 {
		if _, err := route.Call[CreateUser, User](ctx, c, "POST /api/users", CreateUser{Name: fmt.Sprint("user ", i), Email: fmt.Sprintf("u%d@example.com", i)}); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	for after := int64(0); ; {
		page, err := route.Call[ListUsers, Users](ctx, c, "GET /api/users", ListUsers{After: after, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		if seen += len(page.Users); page.Next == 0 {
			break
		}
		after = page.Next
	}
	if seen != 25 {
		t.Errorf("%d users in the pages, want 25", seen)
	}
	s, err := route.Call[struct{}, route.Stream](ctx, c, "GET /api/users.csv", struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(s.Body)
	s.Body.(io.Closer).Close()
	if lines := strings.Count(string(b), "\n"); err != nil || lines != 26 || !strings.Contains(string(b), "25,user 24,u24@example.com,0\n") {
		t.Errorf("%d lines, %v: %s", lines, err, b)
	}
	if h, err := route.Call[struct{}, health](ctx, c, "GET /healthz", struct{}{}); err != nil || h.Users != 25 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	ctx, cancel := context.WithCancel(t.Context())
	ln, path, ended := listen(), filepath.Join(t.TempDir(), "users.db"), make(chan error)
	go func() { ended <- run(ctx, ln, path) }()
	if _, err := route.Call[struct{}, health](ctx, &route.Client{BaseURL: "http://" + ln.Addr().String()}, "GET /healthz", struct{}{}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), listen(), filepath.Join(t.TempDir(), "none", "users.db")); err == nil {
		t.Error("a file in a folder that is missing was opened")
	}
}
