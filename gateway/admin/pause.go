package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/headpond/headpond/upstream"
)

// MaxPause bounds Pause.For.
const MaxPause = upstream.MaxPause

// Pause is the body of POST /api/v1/pause and, without For, of POST /api/v1/resume.
type Pause struct {
	Upstream string `json:"upstream"`
	For      string `json:"for,omitempty"` // as 90s or 5m; the upstream resumes by itself then
}

// pause answers 200 when the upstream is paused, which does not mean that all of its connections are closed; 400 to an
// invalid body, 404 where there is no such upstream, and 422 when it was refused.
func (h *handler) pause(w http.ResponseWriter, r *http.Request) {
	var p Pause
	limit, err := time.Duration(0), readBody(w, r, &p)
	if err == nil {
		limit, err = time.ParseDuration(p.For)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, result{Error: fmt.Sprintf("the body is no pause of an upstream: %v", err)})
		return
	}
	writeResult(w, h.cfg.Pause(p.Upstream, limit))
}

// resume answers as pause does, and 422 if the upstream is not paused.
func (h *handler) resume(w http.ResponseWriter, r *http.Request) {
	var p Pause
	err := readBody(w, r, &p)
	if err == nil && p.For != "" {
		err = errors.New(`"for" is for a pause`)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, result{Error: fmt.Sprintf("the body names no upstream to resume: %v", err)})
		return
	}
	writeResult(w, h.cfg.Resume(p.Upstream))
}

// maxChange bounds the body of a change.
const maxChange = 16 << 10

// readBody decodes the body, which must be one JSON value without other keys than to has.
func readBody(w http.ResponseWriter, r *http.Request, to any) error {
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChange))
	in.DisallowUnknownFields()
	if err := in.Decode(to); err != nil {
		return err
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return errors.New("it has more than one JSON value")
	}
	return nil
}

// writeResult answers a change with its result.
func writeResult(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, ErrUnknown):
		writeJSON(w, http.StatusNotFound, result{Error: err.Error()})
	case err != nil:
		writeJSON(w, http.StatusUnprocessableEntity, result{Error: err.Error()})
	default:
		writeJSON(w, http.StatusOK, result{Applied: true})
	}
}
