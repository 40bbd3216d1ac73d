package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

// ctlProfile writes a profile of the gateway to a file.
func ctlProfile(e env, address, kind, file string) error {
	if old, err := os.ReadFile(file); err == nil && len(old) > 0 && !bytes.HasPrefix(old, []byte{0x1f, 0x8b}) {
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
