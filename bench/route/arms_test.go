package route_test

import (
	"context"
	"net/http"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/gin-gonic/gin"
	"github.com/go-fuego/fuego"

	"github.com/headpond/headpond/route"
	"github.com/headpond/headpond/route/ginroute"
)

type createUser struct {
	Name    string `json:"name" form:"name" binding:"required,max=1000"`
	Email   string `json:"email" form:"email" binding:"required,email"`
	Age     int    `json:"age" form:"age" binding:"min=1,max=150"`
	Country string `json:"country" form:"country" binding:"required"`
}

type user struct {
	ID      int    `json:"id"`
	Name    string `json:"name"`
	Email   string `json:"email"`
	Age     int    `json:"age"`
	Country string `json:"country"`
}

var sample = user{ID: 1, Name: "Ada Lovelace", Email: "ada@example.com", Age: 36, Country: "GB"}

// arms are the compared handlers, each for POST and GET /api/users.
var arms = []struct {
	name string
	make func() http.Handler
}{
	{"harness", func() http.Handler { return http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}) }},
	{"gin", ginArm},
	{"huma", humaArm},
	{"fuego", fuegoArm},
	{"allocated", func() http.Handler { return routeArm(route.Unpooled()) }},
	{"pooled", func() http.Handler { return routeArm() }},
	{"ginroute", ginrouteArm},
	{"study", func() http.Handler {
		return studyArm(func() *studyContext { return new(studyContext) }, func(*studyContext) {})
	}},
	{"studypooled", studyPooledArm},
}

func ginArm() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/api/users", func(c *gin.Context) {
		var req createUser
		if err := c.ShouldBind(&req); err != nil {
			c.JSON(http.StatusUnprocessableEntity, gin.H{"error": err.Error()})
			return
		}
		c.JSON(http.StatusCreated, user{ID: 1, Name: req.Name, Email: req.Email, Age: req.Age, Country: req.Country})
	})
	r.GET("/api/users", func(c *gin.Context) { c.JSON(http.StatusOK, sample) })
	return r
}

// studyContext is the difference between the study's two arms: a context for each request, allocated or from a pool.
// gin's own context is pooled in both.
type studyContext struct {
	req  createUser
	resp user
	err  error
}

func studyPooledArm() http.Handler {
	pool := sync.Pool{New: func() any { return new(studyContext) }}
	return studyArm(func() *studyContext { return pool.Get().(*studyContext) }, func(s *studyContext) {
		*s = studyContext{}
		pool.Put(s)
	})
}

func studyArm(get func() *studyContext, put func(*studyContext)) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/api/users", func(c *gin.Context) {
		s := get()
		defer put(s)
		if s.err = c.ShouldBind(&s.req); s.err != nil {
			c.JSON(http.StatusUnprocessableEntity, gin.H{"error": s.err.Error()})
			return
		}
		s.resp = user{ID: 1, Name: s.req.Name, Email: s.req.Email, Age: s.req.Age, Country: s.req.Country}
		c.JSON(http.StatusCreated, &s.resp)
	})
	r.GET("/api/users", func(c *gin.Context) {
		s := get()
		defer put(s)
		s.resp = sample
		c.JSON(http.StatusOK, &s.resp)
	})
	return r
}

func create(_ *route.Ctx, req createUser) (user, error) {
	return user{ID: 1, Name: req.Name, Email: req.Email, Age: req.Age, Country: req.Country}, nil
}

func get(*route.Ctx, struct{}) (user, error) { return sample, nil }

func routeArm(opts ...route.Option) http.Handler {
	mux := http.NewServeMux()
	route.Handle(mux, "POST /api/users", create, opts...)
	route.Handle(mux, "GET /api/users", get, opts...)
	return mux
}

func ginrouteArm() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	ginroute.Handle(r, "POST /api/users", create)
	ginroute.Handle(r, "GET /api/users", get)
	return r
}

// humaUser has huma's own tags for the same rules.
type humaUser struct {
	Name    string `json:"name" minLength:"1" maxLength:"1000"`
	Email   string `json:"email" format:"email"`
	Age     int    `json:"age" minimum:"1" maximum:"150"`
	Country string `json:"country" minLength:"1"`
}

type humaAnswer struct{ Body user }

func humaArm() http.Handler {
	mux := http.NewServeMux()
	config := huma.DefaultConfig("bench", "1")
	config.CreateHooks = nil // no $schema in answers: the other arms have none
	api := humago.New(mux, config)
	huma.Register(api, huma.Operation{Method: http.MethodPost, Path: "/api/users", DefaultStatus: http.StatusCreated},
		func(_ context.Context, in *struct{ Body humaUser }) (*humaAnswer, error) {
			b := &in.Body
			return &humaAnswer{user{ID: 1, Name: b.Name, Email: b.Email, Age: b.Age, Country: b.Country}}, nil
		})
	huma.Get(api, "/api/users", func(context.Context, *struct{}) (*humaAnswer, error) { return &humaAnswer{sample}, nil })
	return mux
}

// fuegoUser has the tags that fuego's validator reads.
type fuegoUser struct {
	Name    string `json:"name" schema:"name" validate:"required,max=1000"`
	Email   string `json:"email" schema:"email" validate:"required,email"`
	Age     int    `json:"age" schema:"age" validate:"min=1,max=150"`
	Country string `json:"country" schema:"country" validate:"required"`
}

func fuegoArm() http.Handler {
	s := fuego.NewServer(fuego.WithoutStartupMessages(), fuego.WithoutLogger(), fuego.WithLoggingMiddleware(fuego.LoggingConfig{DisableRequest: true, DisableResponse: true}))
	fuego.Post(s, "/api/users", func(c fuego.ContextWithBody[fuegoUser]) (user, error) {
		b, err := c.Body()
		if err != nil {
			return user{}, err
		}
		return user{ID: 1, Name: b.Name, Email: b.Email, Age: b.Age, Country: b.Country}, nil
	})
	fuego.Get(s, "/api/users", func(fuego.ContextNoBody) (user, error) { return sample, nil })
	return s.Mux
}
