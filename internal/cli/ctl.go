package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
)

// ctlTimeout bounds a request to a gateway. A reload may have many files to read and addresses to
// bind.
const ctlTimeout = 30 * time.Second

// maxAnswer bounds the part of an answer that is read: ten thousand endpoints fit.
const maxAnswer = 16 << 20

// ctlActions are the actions of `headpond ctl`.
const ctlActions = "status|health|clients|kill ID…|" + endpointUse + "|" + pauseUse + "|reload|" + profileUse

// ctlHelp is what `headpond help ctl` says about the actions.
const ctlHelp = `Asks or changes the gateway whose admin page is at the address. ACTION is one of:

  status                              its listeners, pools and problems
  health                              exit with 0 if every listener accepts clients; for health checks of containers
  clients                             its sessions, the longest holders of connections first
  kill ID…                            end sessions
  endpoint add UPSTREAM ADDRESS       add an endpoint, or take drain and remove back
  endpoint drain UPSTREAM ADDRESS     no new connections; those in use may go on
  endpoint remove UPSTREAM ADDRESS    the same, but on_removed decides about connections in use
  endpoint weight UPSTREAM ADDRESS N  another weight; "default" restores it
  pause UPSTREAM                      close its connections and let its clients wait, while its servers restart
  resume UPSTREAM                     end a pause
  reload                              read the configuration file again
  profile cpu|heap|goroutine FILE     write a profile of the program for go tool pprof; cpu takes 10 s

Changes of endpoints are in force until a reload, with -keep until the gateway ends.
`

// ctlNames are the first words of the actions.
var ctlNames = []string{"status", "health", "clients", "kill", "endpoint", "pause", "resume", "reload", "profile"}

// ctl is `headpond ctl`.
func ctl(e env, args []string) int {
	fs := flags("ctl", "ACTION", ctlHelp)
	address := fs.String("admin", DefaultAdmin, "`address` of the admin page: host:port or unix:/path")
	asJSON := fs.Bool("json", false, "print the status or the clients as JSON")
	query := clientFlags(fs)
	change, given := endpointFlags(fs)
	pause := definePauseFlags(fs)
	args, code, ok := parse(e, fs, args, -1, "want "+ctlActions)
	if !ok {
		return code
	}
	action, rest := args[0], args[1:]
	wrong := cmp.Or(pause.misused(action, rest), profileMisused(action, rest), misused(action, rest, query, change, *given))
	var err error
	switch {
	case wrong != "":
	case action == "status":
		err = ctlStatus(e, *address, *asJSON)
	case action == "health":
		err = ctlHealth(e, *address)
	case action == "clients":
		err = ctlClients(e, *address, query, *asJSON)
	case action == "kill":
		err = ctlKill(e, *address, rest)
	case action == "endpoint":
		err = ctlEndpoint(e, *address, change)
	case action == "pause":
		err = ctlPause(e, *address, rest[0], pause)
	case action == "resume":
		err = ctlResume(e, *address, rest[0])
	case action == "reload":
		err = ctlReload(e, *address)
	case action == "profile":
		err = ctlProfile(e, *address, rest[0], rest[1])
	}
	if wrong != "" {
		_, _ = fmt.Fprintf(e.stderr, "headpond ctl: %s\n", wrong)
		return exitUsage
	}
	if err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
		return exitProblem
	}
	return exitOK
}

// ctlWords returns the words that may follow the arguments of ctl, for completion.
func ctlWords(args []string) []string {
	switch {
	case len(args) == 0:
		return ctlNames
	case len(args) == 1 && args[0] == "endpoint":
		return endpointActions()
	case len(args) == 1 && args[0] == "profile":
		return admin.Profiles
	}
	return nil
}

// unknownAction is the message for an action that there is not.
func unknownAction(action string) string {
	if closest := config.Closest(action, ctlNames); closest != "" {
		return fmt.Sprintf("unknown action %q; did you mean %q?", action, closest)
	}
	return fmt.Sprintf("unknown action %q; want %s", action, ctlActions)
}

// misused returns what is wrong with an action's arguments, "" if nothing is, and completes change from them.
func misused(action string, rest []string, query url.Values, change *admin.EndpointChange, given []string) string {
	switch {
	case !slices.Contains(ctlNames, action):
		return unknownAction(action)
	case action != "clients" && len(query) > 0:
		return "only clients can be filtered"
	case action == "endpoint":
		return parseEndpoint(change, given, rest)
	case len(given) > 0:
		return fmt.Sprintf("-%s is for endpoint only", given[0])
	case action == "kill" && len(rest) == 0:
		return "kill wants the IDs that clients shows"
	case len(rest) > 0 && !slices.Contains([]string{"kill", "pause", "resume", "profile"}, action):
		return fmt.Sprintf("%s takes no argument", action)
	}
	return ""
}

// clientFlags defines the filters of clients, and returns the query for which they stand.
func clientFlags(fs *flag.FlagSet) url.Values {
	query := url.Values{}
	set := func(name string) func(string) error {
		return func(value string) error {
			query.Set(name, value)
			return nil
		}
	}
	fs.Func("listener", "clients of one listener, by `name`", set("listener"))
	fs.Func("user", "clients of one user, by `name`", set("user"))
	fs.Func("database", "clients of one database, by `name`", set("database"))
	fs.Func("upstream", "clients that use one upstream, by `name`", set("upstream"))
	fs.Func("state", "clients in one `state`: queued, starting, idle, waiting, active, \"idle in transaction\", pinned or draining", set("state"))
	fs.Func("older", "clients that have been in their state for this `duration`, such as 10s", set("older"))
	fs.Func("held", "clients that have held a connection for this `duration`", set("held"))
	fs.Func("limit", "at most this `number` of clients; 100 by default, no more than 1000", set("limit"))
	fs.BoolFunc("waiting", "clients that wait for a connection: -state waiting", func(value string) error {
		if on, err := strconv.ParseBool(value); !on {
			return err
		}
		return set("state")("waiting")
	})
	return query
}

// hostOf returns the host and port of an address as in a browser or the configuration, or of a port alone. It returns
// "" for anything else.
func hostOf(address string) string {
	address, _, _ = strings.Cut(strings.TrimPrefix(address, "http://"), "/")
	if strings.Trim(address, "0123456789") == "" {
		address = ":" + address
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return ""
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
}

// unexpected describes an answer that does not come from a gateway, or not to this request.
func unexpected(address string, code int, body []byte) error {
	why, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return fmt.Errorf("%s answers %d %s (%.200q); is it a gateway's admin page?", address, code, http.StatusText(code), why)
}

// ask sends one request to the admin page.
func ask(address, method, path string) (code int, body []byte, err error) {
	return askWith(context.Background(), address, method, path, http.NoBody)
}

// askWith is ask with a body, and with a context that may end before ctlTimeout.
func askWith(ctx context.Context, address, method, path string, with io.Reader) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, ctlTimeout)
	defer cancel()
	begun := time.Now()
	host := hostOf(address)
	transport := &http.Transport{DisableKeepAlives: true}
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		host = "localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, with)
	if err != nil || host == "" {
		return 0, nil, fmt.Errorf("admin address %q: want host:port or unix:/path", address)
	}
	req.Header.Set(admin.ReloadHeader, "1")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return 0, nil, fmt.Errorf("the gateway at %s has not answered within %v: it may be busy, or wait for a file that its configuration names", address, time.Since(begun).Round(time.Second))
	case err != nil:
		return 0, nil, fmt.Errorf("no gateway answers at %s (is it running, with \"admin\" in its configuration? -admin names another address): %w", address, errors.Unwrap(err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, body, err
}

// notLocal is the second part of messages that begin with what the admin page refuses to do.
const notLocal = ", for it is not on a loopback address or unix socket"

// refusal is a gateway's answer to a change that it refused.
type refusal struct {
	code int // the HTTP status
	why  string
}

func (r *refusal) Error() string { return r.why }

// askChange requests a change. It returns nil once the gateway has made the change, and a *refusal if the gateway gives
// a reason against it. never says what the admin page does not do if it accepts no changes.
func askChange(ctx context.Context, address, method, path string, with io.Reader, never string) error {
	code, body, err := askWith(ctx, address, method, path, with)
	if err != nil {
		return err
	}
	var answer struct {
		Applied bool
		Error   string
	}
	_ = json.Unmarshal(body, &answer) // both fields stay empty if it is not a gateway's answer
	switch {
	case answer.Applied:
		return nil
	case answer.Error != "":
		return &refusal{code, answer.Error}
	case code == http.StatusNotFound || code == http.StatusMethodNotAllowed:
		return fmt.Errorf("the admin page at %s %s", address, never)
	}
	return unexpected(address, code, body)
}

func ctlReload(e env, address string) error {
	err := askChange(context.Background(), address, http.MethodPost, "/api/v1/reload", http.NoBody, "takes no reloads"+notLocal+"; send SIGHUP to the gateway instead")
	if refused, ok := errors.AsType[*refusal](err); ok {
		return fmt.Errorf("reload refused, the old configuration keeps running: %w", refused)
	}
	if err != nil {
		return err
	}
	s, _, err := askStatus(address)
	if err != nil || s.Reloads.LastChanges == "" { // the reload may have moved the admin page, or the gateway is older
		_, _ = fmt.Fprintln(e.stdout, "reloaded")
		return nil //nolint:nilerr // it has reloaded
	}
	_, _ = fmt.Fprintf(e.stdout, "reloaded, changes: %s\n", printable(s.Reloads.LastChanges))
	for _, warning := range s.Reloads.LastWarnings {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", printable(warning))
	}
	for _, why := range s.NotReady {
		_, _ = fmt.Fprintln(e.stderr, "headpond: not ready:", printable(why))
	}
	return nil
}

func ctlStatus(e env, address string, asJSON bool) error {
	s, body, err := askStatus(address)
	if err != nil {
		return err
	}
	if asJSON {
		_, err := e.stdout.Write(body)
		return err
	}
	printStatus(e.stdout, s)
	return nil
}

// askStatus asks for the status, and returns it also as JSON.
func askStatus(address string) (s admin.Status, body []byte, err error) {
	code, body, err := ask(address, http.MethodGet, "/api/v1/status")
	switch {
	case err != nil:
		return s, nil, err
	case code != http.StatusOK:
		return s, nil, unexpected(address, code, body)
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return s, nil, fmt.Errorf("%s is not a gateway's admin page: %w", address, err)
	}
	return s, body, nil
}

// ctlHealth prints what /readyz answers, and fails unless the gateway is ready.
func ctlHealth(e env, address string) error {
	code, body, err := ask(address, http.MethodGet, "/readyz")
	switch {
	case err != nil:
		return err
	case code == http.StatusOK:
		_, err := e.stdout.Write(body)
		return err
	case code == http.StatusServiceUnavailable:
		return fmt.Errorf("not ready: %s", printable(strings.Join(strings.Split(strings.TrimSpace(string(body)), "\n"), "; ")))
	}
	return unexpected(address, code, body)
}
