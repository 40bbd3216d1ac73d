package integration

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/headpond/headpond/route"
)

// The types of a client of examples/users.
type (
	createUser struct {
		Name  string `json:"name"`
		Email string `json:"email"`
	}
	userID struct {
		ID int64 `path:"id"`
	}
	user struct {
		ID    int64  `json:"id"`
		Name  string `json:"name"`
		Email string `json:"email"`
	}
)

// TestUsersServiceThroughTheGateway runs examples/users with the race detector behind an HTTP listener, and uses it
// from several clients at once.
func TestUsersServiceThroughTheGateway(t *testing.T) {
	backend, service := startUsers(t)
	listen := address(t)
	startGateway(t, httpConfig(listen, "max_size: 4", backend))
	c := &route.Client{BaseURL: "http://" + listen, HTTP: httpClient(t)}
	const clients, each = 4, 25
	var wg sync.WaitGroup
	for g := range clients {
		wg.Go(func() {
			for i := range each {
				if err := oneUser(t, c, fmt.Sprintf("u%d-%d", g, i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	type page struct {
		Users []user `json:"users"`
	}
	type list struct {
		Limit int `query:"limit"`
	}
	if p, err := route.Call[list, page](t.Context(), c, "GET /api/users", list{500}); err != nil || len(p.Users) != clients*each {
		t.Errorf("%d users, want %d: %v", len(p.Users), clients*each, err)
	}
	if code, body, err := get(c.HTTP, c.BaseURL+"/docs/openapi.json"); err != nil || code != http.StatusOK || !strings.Contains(body, `"/api/users/{id}"`) {
		t.Errorf("OpenAPI: %d, %v", code, err)
	}
	if err := service.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := service.awaitEnd(t, patience); code != 0 || strings.Contains(service.out.String(), "DATA RACE") || strings.Contains(service.out.String(), "panic") {
		t.Errorf("the service ended with code %d:\n%s", code, service.out)
	}
}

// oneUser creates and reads a user, and checks that invalid requests are refused.
func oneUser(t *testing.T, c *route.Client, name string) error {
	ctx, req := t.Context(), createUser{name, name + "@example.com"}
	created, err := route.Call[createUser, user](ctx, c, "POST /api/users", req)
	if err != nil || created.Name != name {
		return fmt.Errorf("created %+v: %w", created, err)
	}
	if got, err := route.Call[userID, user](ctx, c, "GET /api/users/{id}", userID{created.ID}); err != nil || got != created {
		return fmt.Errorf("got %+v, created %+v: %w", got, created, err)
	}
	for _, bad := range []struct {
		req  createUser
		want int
	}{{req, http.StatusConflict}, {createUser{name, "nobody"}, http.StatusUnprocessableEntity}} {
		_, err := route.Call[createUser, user](ctx, c, "POST /api/users", bad.req)
		if p, ok := errors.AsType[*route.Problem](err); !ok || p.Status != bad.want {
			return fmt.Errorf("%+v: status %d is wanted: %w", bad.req, bad.want, err)
		}
	}
	return nil
}

// startUsers builds and starts examples/users and returns its address.
func startUsers(t *testing.T) (string, *process) {
	t.Helper()
	binary, addr := filepath.Join(sharedDir(t), "users"), address(t)
	build := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", binary}, append(withRace, "./examples/users")...)...)
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	service := start(t, exec.Command(binary, "-listen", addr, "-db", filepath.Join(t.TempDir(), "users.db")))
	eventually(t, "the service answers", func() error {
		code, body := 0, ""
		var err error
		if code, body, err = get(adminClient, "http://"+addr+"/healthz"); err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	return addr, service
}
