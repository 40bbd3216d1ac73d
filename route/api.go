package route

import "net/http"

// API is a Mux whose handlers share options.
type API struct {
	mux  Mux
	opts []Option
}

// NewAPI returns an API that registers with mux. opts are in front of those of each handler.
func NewAPI(mux Mux, opts ...Option) *API { return &API{mux: mux, opts: opts} }

// Handle implements Mux.
func (a *API) Handle(pattern string, handler http.Handler) { a.mux.Handle(pattern, handler) }
