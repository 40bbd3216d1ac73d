package route_test

import (
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/route"
)

type address struct {
	Street string `json:"street" validate:"required,max=50" doc:"Street and number." example:"Mill Lane 3"`
	City   string `json:"city,omitempty" validate:"omitempty,min=2"`
}

type person struct {
	Name    string     `json:"name" form:"name" validate:"required,max=40" example:"Ada"`
	Age     int        `json:"age" form:"age" validate:"min=1,max=150"`
	Score   int8       `json:"score,omitempty" form:"score" validate:"omitempty,gte=-5"`
	Ratio   float64    `json:"ratio" form:"ratio" validate:"gte=0,lt=1"`
	Agreed  bool       `json:"agreed" form:"agreed" validate:"required"`
	Kind    string     `json:"kind" form:"kind" default:"person" validate:"oneof=person robot"`
	Size    string     `json:"size,omitempty" form:"size" validate:"omitempty,oneof=s m l"`
	Born    time.Time  `json:"born" form:"born"`
	Left    *time.Time `json:"left,omitempty" form:"left"`
	Email   *string    `json:"email,omitempty" form:"email" validate:"omitempty,min=3"`
	Tags    []string   `json:"tags" form:"tags" validate:"max=3,dive,required,max=10"`
	Numbers []int      `json:"numbers" form:"numbers" validate:"unique"`
}

type household struct {
	person
	Home    address            `json:"home"`
	Other   *address           `json:"other"`
	Labels  map[string]string  `json:"labels" validate:"max=2,dive,keys,min=1,max=5,endkeys,required"`
	Counts  map[string]float32 `json:"counts"`
	People  []person           `json:"people" validate:"max=2,dive"`
	Parent  *household         `json:"parent,omitempty"`
	Any     any                `json:"any"`
	Quoted  int32              `json:"quoted,string"`
	Raw     []byte             `json:"raw"`
	Fixed   [2]uint16          `json:"fixed"`
	Code    string             `json:"code" validate:"len=3"`
	Nothing struct{}           `json:"nothing"`
}

type search struct {
	ID     int64    `path:"id" validate:"min=1"`
	Page   uint8    `query:"page" default:"1" validate:"min=1"`
	Order  string   `query:"order" validate:"omitempty,oneof=up down"`
	Wanted []string `query:"wanted" validate:"max=2"`
	Exact  bool     `query:"exact"`
	Tenant string   `header:"X-Tenant" validate:"required,alphanum"`
	Level  int      `header:"X-Level" validate:"omitempty,max=9"`
}

type attachments struct {
	Title string                  `form:"title" validate:"required"`
	Main  *multipart.FileHeader   `file:"main" validate:"required"`
	More  []*multipart.FileHeader `file:"more"`
}

// described is a service with all that a document can say.
func described() http.Handler {
	mux := http.NewServeMux()
	api := route.NewAPI(mux, route.Info{
		Title: "Everything", Version: "1", SecuritySchemes: map[string]route.SecurityScheme{"key": {Type: "apiKey", Name: "X-Key", In: "header"}},
	})
	route.Handle(api, "POST /people", func(_ *route.Ctx, req person) (person, error) { return req, nil })
	route.Handle(api, "PUT /households", func(_ *route.Ctx, req household) (household, error) { return req, nil }, route.RefuseUnknown())
	route.Handle(api, "PUT /people/{id}", func(_ *route.Ctx, req struct {
		ID string `path:"id"`
		person
	}) (person, error) {
		return req.person, nil
	}, route.RefuseUnknown())
	route.Handle(api, "POST /households", func(_ *route.Ctx, req []household) ([]household, error) { return req, nil })
	route.Handle(api, "POST /ages", func(_ *route.Ctx, req map[string]int16) (int, error) { return len(req), nil }, route.Security("key"), route.Security())
	route.Handle(api, "GET /search/{id}", func(_ *route.Ctx, req search) (search, error) { return req, nil }, route.Summary("Search", "For *anything*."))
	route.Handle(api, "POST /files", func(_ *route.Ctx, req attachments) (int64, error) { return req.Main.Size, nil })
	route.Handle(api, "GET /export", func(*route.Ctx, struct{}) (route.Stream, error) {
		return route.Stream{ContentType: "text/csv", Body: strings.NewReader("a,b\n")}, nil
	}, route.Produces("text/csv"))
	route.Handle(api, "DELETE /people/{id}", func(_ *route.Ctx, req struct {
		ID uint32 `path:"id"`
	}) (struct{}, error) {
		return struct{}{}, nil
	})
	api.ServeDocs("/docs")
	return route.Problems(mux)
}

// TestDocumentIsWhatIsAccepted has schemathesis make requests of the document, right and wrong ones, and compare the answers with it.
func TestDocumentIsWhatIsAccepted(t *testing.T) {
	server := httptest.NewServer(described())
	defer server.Close()
	clienttest.OpenAPI(t, server.URL+"/docs/openapi.json")
}
