package route

import (
	"bytes"
	"embed"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Info is the OpenAPI description of an API as a whole.
type Info struct {
	Title       string // the default is API
	Version     string // the default is 0.0.0
	Description string // in Markdown
	Servers     []string
	// SecuritySchemes are how requests are authenticated, by the names that the option Security uses.
	SecuritySchemes map[string]SecurityScheme
}

// SecurityScheme is how requests are authenticated: the Security Scheme Object of OpenAPI 3.1.
type SecurityScheme struct {
	Type             string         `json:"type"` // apiKey, http, mutualTLS, oauth2 or openIdConnect
	Description      string         `json:"description,omitempty"`
	Name             string         `json:"name,omitempty"`             // of the header, query parameter or cookie; for apiKey
	In               string         `json:"in,omitempty"`               // header, query or cookie; for apiKey
	Scheme           string         `json:"scheme,omitempty"`           // bearer or basic, say; for http
	BearerFormat     string         `json:"bearerFormat,omitempty"`     // for people; for http
	Flows            map[string]any `json:"flows,omitempty"`            // for oauth2
	OpenIDConnectURL string         `json:"openIdConnectUrl,omitempty"` // for openIdConnect
}

// API is a Mux whose handlers share options and are described by OpenAPI 3.1. Its methods may be called by many
// goroutines at once.
type API struct {
	mux  Mux
	info Info
	opts []Option

	mu        sync.Mutex
	endpoints []*Endpoint
	document  []byte // of the endpoints, nil when it has to be made again
}

// NewAPI returns an API that registers with mux. opts are in front of those of each handler.
func NewAPI(mux Mux, info Info, opts ...Option) *API {
	if info.Title == "" {
		info.Title = "API"
	}
	if info.Version == "" {
		info.Version = "0.0.0"
	}
	return &API{mux: mux, info: info, opts: opts}
}

// Handle implements Mux.
func (a *API) Handle(pattern string, handler http.Handler) {
	if e, ok := handler.(*Endpoint); ok && !e.doc.hidden {
		a.mu.Lock()
		a.endpoints, a.document = append(a.endpoints, e), nil
		a.mu.Unlock()
	}
	a.mux.Handle(pattern, handler)
}

// OpenAPI returns the description of the handlers registered so far: an OpenAPI 3.1 document in JSON.
// It may not be changed.
func (a *API) OpenAPI() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.document == nil {
		a.document = describe(a.info, a.endpoints)
	}
	return a.document
}

//go:embed page
var page embed.FS

// ServeDocs serves a page to read and to try the API at path, "/docs" say, and the document at path + "/openapi.json".
// The page loads nothing from other hosts. Its users can send requests to the API: protect it as you protect the API.
func (a *API) ServeDocs(path string) {
	path = strings.TrimSuffix(path, "/")
	start := time.Now()
	a.mux.Handle("GET "+path+"/openapi.json", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", typeJSON)
		w.Header().Set("Cache-Control", "no-cache")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.OpenAPI()))
	}))
	home, base := "", path[strings.LastIndexByte(path, '/')+1:]
	if path == "" {
		home, base = "/{$}", "."
	}
	for url, name := range map[string]string{home: "page.html", "/page.js": "page.js", "/page.css": "page.css"} {
		content, err := page.ReadFile("page/" + name)
		if err != nil {
			panic(err) // it is compiled in
		}
		if name == "page.html" { // its links are relative, and there is no slash at the end
			content = bytes.ReplaceAll(content, []byte("{{base}}"), []byte(base))
		}
		a.mux.Handle("GET "+path+url, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src *; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			http.ServeContent(w, r, name, start, bytes.NewReader(content))
		}))
	}
}
