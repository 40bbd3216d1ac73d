package demo

import (
	"net"
	"net/http"
	"time"

	"github.com/headpond/headpond/internal/mockllm"
)

// tokenPause is how fast the language model speaks.
const tokenPause = 100 * time.Millisecond

// model is the mock of a language model.
type model struct{ http *http.Server }

func newModel() *model {
	return &model{&http.Server{
		Handler:           &mockllm.Server{Models: []string{"mock"}, Pause: tokenPause},
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute, // as of web
	}}
}

func (m *model) serve(l net.Listener) { go func() { _ = m.http.Serve(l) }() }

// Close ends the server and its answers.
func (m *model) Close() error { return m.http.Close() }
