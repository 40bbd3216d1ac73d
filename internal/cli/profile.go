package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/admin"
)

// profileUse describes the arguments of `headpond ctl profile`.
const profileUse = "profile cpu|heap|goroutine FILE"

// profileMisused returns what is wrong with the arguments of `ctl profile`, "" if nothing is.
func profileMisused(action string, rest []string) string {
	if action != "profile" || len(rest) == 2 && slices.Contains(admin.Profiles, rest[0]) {
		return ""
	}
	return "profile wants one of " + strings.Join(admin.Profiles, ", ") + ", and the FILE to write"
}

// isOther reports whether there is such a file with something else than a profile. Whatever is no file, such as a pipe, must not
// be read: that may never end.
func isOther(file string) bool {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	f, err := os.Open(file) //nolint:gosec // the operator names it
	if err != nil {
		return false // writing tells why
	}
	defer func() { _ = f.Close() }()
	var begin [2]byte
	_, _ = io.ReadFull(f, begin[:])
	return begin != [2]byte{0x1f, 0x8b} // gzip
}

// ctlProfile writes a profile of the gateway to a file.
func ctlProfile(e env, address, kind, file string) error {
	if isOther(file) {
		return fmt.Errorf("%s exists, is not a profile, and is not replaced; write elsewhere", file)
	}
	if kind == "cpu" {
		_, _ = fmt.Fprintf(e.stderr, "profiling for %v\n", admin.ProfileTime)
	}
	code, body, err := askWith(context.Background(), address, http.MethodPost, "/api/v1/profile?kind="+kind, http.NoBody)
	if err != nil {
		return err
	}
	var refused struct{ Error string }
	switch _ = json.Unmarshal(body, &refused); {
	case code == http.StatusOK:
	case refused.Error != "":
		return &refusal{code, refused.Error}
	case code == http.StatusNotFound || code == http.StatusMethodNotAllowed:
		return fmt.Errorf("the admin page at %s makes no profiles%s", address, notLocal)
	default:
		return unexpected(address, code, body)
	}
	if err := os.WriteFile(file, body, 0o600); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(e.stdout, "wrote %s; look at it with: go tool pprof -http : %s\n", file, file)
	return nil
}
