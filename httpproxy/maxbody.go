package httpproxy

import (
	"fmt"
	"net/http"

	"github.com/headpond/headpond/pool/httppool"
)

// tooLong reports whether a body with n bytes of content is longer than the route allows.
func (s *session) tooLong(n int64) bool {
	most := s.ex.target.route.MaxBody
	return most > 0 && n > most
}

func tooLongText(most int64) string {
	return fmt.Sprintf("the body is longer than the %d bytes that the route allows", most)
}

// errTooLong is the error of a body without a length that is longer than the route allows.
func (s *session) errTooLong() error {
	return fmt.Errorf("%w: %w", httppool.ErrRequestBody, &http.MaxBytesError{Limit: s.ex.target.route.MaxBody})
}
