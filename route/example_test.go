package route_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/headpond/headpond/route"
)

type createUser struct {
	Team string `path:"team"`
	Name string `json:"name" validate:"required,max=100"`
	Age  int    `json:"age" validate:"min=1,max=150"`
}

type user struct {
	Team string `json:"team"`
	Name string `json:"name"`
}

func Example() {
	mux := http.NewServeMux()
	route.Handle(mux, "POST /teams/{team}/users", func(_ *route.Ctx, req createUser) (user, error) {
		return user{Team: req.Team, Name: req.Name}, nil
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	for _, body := range []string{`{"name":"Ada","age":36}`, `{"age":200}`} {
		resp, err := http.Post(server.URL+"/teams/math/users", "application/json", strings.NewReader(body))
		if err != nil {
			fmt.Println(err)
			return
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(resp.StatusCode, string(answer))
	}
	// Output:
	// 201 {"team":"math","name":"Ada"}
	// 422 {"title":"Unprocessable Entity","status":422,"detail":"2 values are invalid","errors":[{"pointer":"#/name","rule":"required","detail":"is required"},{"pointer":"#/age","rule":"max","detail":"must be at most 150"}]}
}

// The errors of your own packages become problems in one place, and the client of the same types gets them back.
func ExampleMapError() {
	errSoldOut := errors.New("sold out")
	mux := http.NewServeMux()
	api := route.NewAPI(mux, route.Info{Title: "Shop", Version: "1.0.0"}, route.MapError(func(err error) *route.Problem {
		if errors.Is(err, errSoldOut) {
			return route.Errorf(http.StatusConflict, "no more of it: %v", err)
		}
		return nil // as every other error
	}))
	route.Handle(api, "POST /teams/{team}/users", func(_ *route.Ctx, req createUser) (user, error) {
		return user{}, fmt.Errorf("places of %s: %w", req.Team, errSoldOut)
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	client := &route.Client{BaseURL: server.URL}
	_, err := route.Call[createUser, user](context.Background(), client, "POST /teams/{team}/users", createUser{Team: "math", Name: "Ada", Age: 36})
	if p, ok := errors.AsType[*route.Problem](err); ok {
		fmt.Println(p.Status, p.Detail)
	}
	// Output: 409 no more of it: places of math: sold out
}
