package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// ctlTimeout bounds a question to a gateway; a reload may have to read and bind a lot.
const ctlTimeout = 30 * time.Second

// maxAnswer bounds what is read of an answer: ten thousand endpoints fit.
const maxAnswer = 16 << 20

// ctl is `headpond ctl status|reload`.
func ctl(e env, args []string) int {
	fs := flags("ctl", "status|reload", "Asks the gateway whose admin page is at the address for its status, or to read its configuration file again.")
	address := fs.String("admin", "127.0.0.1:9090", "`address` of the admin page: host:port or unix:/path")
	asJSON := fs.Bool("json", false, "print the status as JSON")
	args, code, ok := parse(e, fs, args, 1, "want status or reload")
	if !ok {
		return code
	}
	var err error
	switch args[0] {
	case "status":
		err = ctlStatus(e, *address, *asJSON)
	case "reload":
		err = ctlReload(e, *address)
	default:
		_, _ = fmt.Fprintf(e.stderr, "headpond ctl: unknown action %q; want status or reload\n", args[0])
		return exitUsage
	}
	if err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
		return exitProblem
	}
	return exitOK
}

// hostOf is the host and port of an address as it stands in a browser or the configuration, or the port alone; "" if it is none of these.
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

// unexpected is what an answer means that no gateway gives, or none to this question.
func unexpected(address string, code int, body []byte) error {
	why, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return fmt.Errorf("%s answers %d %s (%.200q); is it a gateway's admin page?", address, code, http.StatusText(code), why)
}

// ask sends one request to the admin page.
func ask(address, method, path string) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), ctlTimeout)
	defer cancel()
	host := hostOf(address)
	transport := &http.Transport{DisableKeepAlives: true}
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		host = "localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, nil)
	if err != nil || host == "" {
		return 0, nil, fmt.Errorf("admin address %q: want host:port or unix:/path", address)
	}
	req.Header.Set(admin.ReloadHeader, "1")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return 0, nil, fmt.Errorf("the gateway at %s has not answered within %v: it may be busy, or wait for a file that its configuration names", address, ctlTimeout)
	case err != nil:
		return 0, nil, fmt.Errorf("no gateway answers at %s (is it running? -admin names its admin address): %w", address, errors.Unwrap(err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, body, err
}

func ctlReload(e env, address string) error {
	code, body, err := ask(address, http.MethodPost, "/api/v1/reload")
	if err != nil {
		return err
	}
	var answer struct {
		Applied bool
		Error   string
	}
	_ = json.Unmarshal(body, &answer) // what is no answer of a gateway says neither
	switch {
	case answer.Applied:
		_, _ = fmt.Fprintln(e.stdout, "reloaded")
		return nil
	case answer.Error != "":
		return fmt.Errorf("reload refused, the old configuration keeps running: %s", answer.Error)
	case code == http.StatusNotFound:
		return fmt.Errorf("the admin page at %s takes no reloads, for it is not on a loopback address or unix socket; send SIGHUP to the gateway instead", address)
	}
	return unexpected(address, code, body)
}

func ctlStatus(e env, address string, asJSON bool) error {
	code, body, err := ask(address, http.MethodGet, "/api/v1/status")
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return unexpected(address, code, body)
	}
	if asJSON {
		_, err := e.stdout.Write(body)
		return err
	}
	var s admin.Status
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("%s is not a gateway's admin page: %w", address, err)
	}
	printStatus(e.stdout, s)
	return nil
}
