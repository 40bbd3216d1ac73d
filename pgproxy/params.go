package pgproxy

import (
	"fmt"
	"strings"
	"sync"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// settingsOf returns the settings in a startup message: those in "options", and the named ones, which take precedence
// as they do on a server. Of several values of a setting the last one counts.
func settingsOf(m *pgwire.StartupMessage) ([]pgwire.Param, error) {
	list, err := optionsOf(m)
	if err != nil {
		return nil, err
	}
	for _, p := range m.Params {
		switch {
		case p.Name == "user" || p.Name == "database" || p.Name == "options" || p.Name == "replication" || strings.HasPrefix(p.Name, "_pq_."):
		default:
			list = putParam(list, p)
		}
	}
	if len(list) > maxSettings {
		return nil, &refusal{code: pgwire.StateProgramLimitExceeded, reason: listener.ReasonProtocol,
			message: fmt.Sprintf("%d settings in the startup packet, the limit is %d", len(list), maxSettings)}
	}
	for i, p := range list {
		if err := checkParam(p); err != nil {
			return nil, err
		}
		if isLogin(p.Name) { // it comes from "options", where servers do not know it either
			return nil, &refusal{code: pgwire.StateUndefinedObject, reason: listener.ReasonProtocol,
				message: fmt.Sprintf("unrecognized configuration parameter %q", p.Name)}
		}
		list[i] = pgwire.Param{Name: shared(p.Name), Value: shared(p.Value)}
	}
	return list, nil
}

// isLogin reports whether a startup parameter is no setting, but says who connects to what, and how.
func isLogin(name string) bool {
	switch strings.ToLower(name) {
	case "user", "database", "options", "replication":
		return true
	}
	return false
}

// optionsOf returns the settings in the "options" parameters of a startup message.
func optionsOf(m *pgwire.StartupMessage) (list []pgwire.Param, err error) {
	for _, p := range m.Params {
		if p.Name != "options" {
			continue
		}
		more, err := parseOptions(p.Value)
		if err != nil {
			return nil, err
		}
		for _, o := range more {
			list = putParam(list, o)
		}
	}
	return list, nil
}

// maxSettings bounds the settings that a client gives at startup: each adds to the work of every change of server
// connection.
const maxSettings = 100

// putParam adds p, or replaces the parameter of the same name. Names are not case-sensitive.
func putParam(list []pgwire.Param, p pgwire.Param) []pgwire.Param {
	for i := range list {
		if strings.EqualFold(list[i].Name, p.Name) {
			list[i].Value = p.Value
			return list
		}
	}
	return append(list, p)
}

// checkParam refuses parameters that cannot be passed on safely: invalid names, and values that mix backslashes with
// bytes outside ASCII, because their meaning depends on the client's encoding.
func checkParam(p pgwire.Param) error {
	for _, r := range p.Name {
		if r != '_' && r != '.' && r != '$' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return badParam(p.Name, "the name has characters no parameter name has")
		}
	}
	if strings.Contains(p.Value, `\`) && strings.ContainsFunc(p.Value, func(r rune) bool { return r > 0x7f }) {
		return badParam(p.Name, "the value mixes backslashes with characters outside ASCII")
	}
	return nil
}

// checkSessionParams refuses parameters that RESET could not restore in session mode: the session's user is the
// gateway's login.
func checkSessionParams(mode Mode, params []pgwire.Param) error {
	for _, p := range params {
		if mode == Session && strings.EqualFold(p.Name, "session_authorization") {
			return &refusal{code: pgwire.StateFeatureNotSupported, reason: listener.ReasonProtocol,
				message: `startup parameter "session_authorization" is not supported in session mode`,
				hint:    "Send SET SESSION AUTHORIZATION after the login, or give the parameter \"role\"."}
		}
	}
	return nil
}

// checkServerParam refuses parameters that cannot be settings of server connections.
func checkServerParam(p pgwire.Param) error {
	switch name := strings.ToLower(p.Name); {
	case name == "" || isLogin(name) || name == "role" || name == "session_authorization" || strings.HasPrefix(name, "_pq_."):
		return fmt.Errorf("%q is no setting for server connections", p.Name)
	case strings.ContainsRune(p.Value, 0):
		return fmt.Errorf("the value of %q has a NUL character in it", p.Name)
	}
	return checkParam(p)
}

func badParam(name, why string) error {
	return &refusal{code: pgwire.StateInvalidParameterValue, reason: listener.ReasonProtocol,
		message: fmt.Sprintf("startup parameter %q: %s", name, why)}
}

// parseOptions splits the startup parameter "options" into settings. It has words separated by spaces, in which a
// backslash quotes the next character; each word is "-c name=value", "-cname=value" or "--name=value".
func parseOptions(s string) ([]pgwire.Param, error) {
	words := splitOptions(s)
	var list []pgwire.Param
	for i := 0; i < len(words); i++ {
		word := words[i]
		var setting string
		switch {
		case word == "-c" && i+1 < len(words):
			i++
			setting = words[i]
		case strings.HasPrefix(word, "--"):
			setting = word[2:]
		case strings.HasPrefix(word, "-c"):
			setting = word[2:]
		}
		name, value, ok := strings.Cut(setting, "=")
		if !ok || name == "" {
			return nil, &refusal{code: pgwire.StateSyntaxError, reason: listener.ReasonProtocol,
				message: fmt.Sprintf("invalid word %q in startup parameter \"options\"", word),
				hint:    "The gateway passes on -c name=value and --name=value."}
		}
		list = append(list, pgwire.Param{Name: strings.ReplaceAll(name, "-", "_"), Value: value})
	}
	return list, nil
}

func splitOptions(s string) []string {
	var words []string
	var word strings.Builder
	in := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
			continue
		case c == '\\' && i+1 < len(s):
			i++
		}
		word.WriteByte(s[i])
		in = true
	}
	if in {
		words = append(words, word.String())
	}
	return words
}

// acceptedParams remembers startup settings that servers accepted, with the servers' form of them. Its methods may be
// called from any goroutine.
type acceptedParams struct {
	mu    sync.Mutex // held for a few instructions
	valid map[pgwire.Param]string
}

// maxValid bounds the settings remembered as accepted.
const maxValid = 1000

// get returns the servers' form of a setting if a server has accepted it before.
func (a *acceptedParams) get(p pgwire.Param) (value string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	value, ok = a.valid[p]
	return value, ok
}

// set remembers the servers' form of a setting.
func (a *acceptedParams) set(p pgwire.Param, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.valid == nil || len(a.valid) >= maxValid {
		a.valid = make(map[pgwire.Param]string)
	}
	a.valid[p] = value
}
