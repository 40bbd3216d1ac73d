package admin

import (
	"bytes"
	"fmt"
	"net/http"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// Profiles are the kinds of profiles of POST /api/v1/profile: where processor time goes during [ProfileTime], what the
// heap holds, and what every goroutine and fiber does. `go tool pprof` reads them. They have names of functions and
// numbers, but no data of users.
var Profiles = []string{"cpu", "heap", "goroutine"}

// ProfileTime is the duration of a profile of processor time.
const ProfileTime = 10 * time.Second

// profile answers with a profile; 400 to an unknown kind, and 409 while another one of processor time is made.
func (h *handler) profile(w http.ResponseWriter, r *http.Request) {
	kind, taken := r.URL.Query().Get("kind"), new(bytes.Buffer)
	var err error
	switch {
	case !slices.Contains(Profiles, kind):
		writeJSON(w, http.StatusBadRequest, result{Error: fmt.Sprintf("there is no profile %q; kind is one of %s", kind, strings.Join(Profiles, ", "))})
		return
	case kind == "cpu":
		if err = pprof.StartCPUProfile(taken); err == nil {
			select {
			case <-time.After(ProfileTime):
			case <-r.Context().Done():
			}
			pprof.StopCPUProfile()
		}
	default:
		err = pprof.Lookup(kind).WriteTo(taken, 0)
	}
	if err != nil {
		writeJSON(w, http.StatusConflict, result{Error: err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(taken.Bytes())
}
