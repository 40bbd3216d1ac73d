package upstream

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
)

// Bounds of the answer to a probe.
const (
	probeHeaderBytes = 64 << 10
	probeBodyBytes   = 512 // read from a 400 answer, to find its cause
)

// HTTPCheck is a health check by a GET request over HTTP/1.1, on a new connection. Path is
// required.
type HTTPCheck struct {
	// Path is the requested path, including a query.
	Path string
	// Host is the host in requests, and the name for TLS without a ServerName, for endpoints that are addresses of a
	// name; "" = the endpoint's host.
	Host string
	// Dial connects; nil = package net.
	Dial DialFunc
	// TLS returns the TLS settings; nil = no TLS. It is called for each probe, so that certificates can be replaced,
	// and should return the same pointer as long as nothing changes: settings with a ClientSessionCache resume
	// sessions. Without a ServerName, Host or else the endpoint's host is used.
	TLS func() (*tls.Config, error)
	// Token returns a bearer token; nil = none. It is called for each probe.
	Token func() (string, error)
	// Expect lists the statuses of a healthy endpoint; empty = 200 to 399.
	// Redirects are not followed.
	Expect []int
}

// HTTPProbe returns the Probe of an HTTPCheck for path.
func HTTPProbe(path string) Probe { return HTTPCheck{Path: path}.Probe() }

// HTTPSProbe is HTTPProbe over TLS, with session resumption.
func HTTPSProbe(path string, cfg *tls.Config) Probe {
	if cfg == nil {
		cfg = &tls.Config{}
	}
	cfg = tlsclient.WithSessions(cfg)
	return HTTPCheck{Path: path, TLS: func() (*tls.Config, error) { return cfg, nil }}.Probe()
}

// Probe returns the check as a Probe. Its requests name Host or else the endpoint's host, without the zone of an IPv6
// address, which the server cannot use; or "localhost" for an endpoint without a host.
func (h HTTPCheck) Probe() Probe {
	if !strings.HasPrefix(h.Path, "/") {
		h.Path = "/" + h.Path
	}
	if h.Dial == nil {
		h.Dial = netaddr.Dial
	}
	return func(ctx context.Context, endpoint string) error {
		if err := h.run(ctx, endpoint); err != nil {
			return fmt.Errorf("health probe GET %s: %w", h.Path, err)
		}
		return nil
	}
}

// run does one check.
func (h *HTTPCheck) run(ctx context.Context, endpoint string) error {
	req, err := h.request(ctx, endpoint)
	if err != nil {
		return err
	}
	var cfg *tls.Config
	if h.TLS != nil {
		if cfg, err = h.TLS(); err != nil {
			return err
		}
	}
	setStage(ctx, "connecting")
	raw, err := h.Dial(ctx, endpoint)
	if err != nil {
		return err
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := raw
	if cfg != nil {
		name := endpoint
		if h.Host != "" {
			name = req.Host
		}
		setStage(ctx, "in the TLS handshake")
		tc := tls.Client(raw, tlsclient.For(cfg, name))
		if err := tc.HandshakeContext(ctx); err != nil {
			return explainHandshake(err)
		}
		c = tc
	}
	setStage(ctx, "to the request of GET "+h.Path)
	return h.exchange(c, req) // closing c ends the body
}

// request makes the request for an endpoint.
func (h *HTTPCheck) request(ctx context.Context, endpoint string) (*http.Request, error) {
	host, err := probedHost(endpoint, h.Host)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+h.Path, nil)
	if err != nil {
		return nil, err
	}
	req.Host = host
	req.Close = true
	req.Header.Set("User-Agent", "headpond-health-probe")
	if h.Token != nil {
		token, err := h.Token()
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

// probedHost returns the host in requests to an endpoint: name with the endpoint's port; the endpoint if name is empty;
// for an endpoint without a host name alone, or "localhost".
func probedHost(endpoint, name string) (string, error) {
	network, host, err := netaddr.Split(endpoint)
	if err != nil {
		return "", err
	}
	if network != "tcp" {
		return cmp.Or(name, "localhost"), nil
	}
	if _, port, err := net.SplitHostPort(host); err == nil && name != "" {
		host = net.JoinHostPort(name, port)
	}
	return host, nil
}

// exchange sends the request on c and judges the answer.
func (h *HTTPCheck) exchange(c net.Conn, req *http.Request) error {
	if err := req.Write(c); err != nil {
		return err
	}
	r := bufio.NewReader(io.LimitReader(c, probeHeaderBytes))
	if h.TLS == nil && answersTLS(r) {
		return errNeedsTLS
	}
	resp, err := http.ReadResponse(r, req) //nolint:bodyclose // closing c ends it; Close would read the rest
	if err != nil {
		return err
	}
	switch {
	case len(h.Expect) > 0 && !slices.Contains(h.Expect, resp.StatusCode):
		err = fmt.Errorf("status %s, want %s", resp.Status, strings.Trim(fmt.Sprint(h.Expect), "[]"))
	case len(h.Expect) == 0 && (resp.StatusCode < 200 || resp.StatusCode > 399):
		err = fmt.Errorf("status %s, want 200 to 399", resp.Status)
	}
	if err != nil && h.TLS == nil && resp.StatusCode == http.StatusBadRequest && asksForTLS(resp.Body) {
		return fmt.Errorf("%w (%w)", errNeedsTLS, err)
	}
	return err
}

// Errors of checks that cannot succeed.
var (
	errNeedsTLS = errors.New("the endpoint answered with TLS: use https")
	errNoTLS    = errors.New("the endpoint does not speak TLS: use http")
)

// answersTLS reports whether the answer begins with a TLS alert, which TLS servers send to clients without TLS.
func answersTLS(r *bufio.Reader) bool {
	start, err := r.Peek(2)
	return err == nil && bytes.Equal(start, []byte{21, 3}) // alert, TLS or SSL 3
}

// asksForTLS reports whether a 400 answer is about a request without TLS, in the words of Go's and nginx's servers.
func asksForTLS(body io.Reader) bool {
	text, _ := io.ReadAll(io.LimitReader(body, probeBodyBytes))
	return bytes.Contains(text, []byte("HTTPS"))
}

// explainHandshake adds advice when the endpoint does not speak TLS.
func explainHandshake(err error) error {
	var header tls.RecordHeaderError
	if errors.As(err, &header) {
		return fmt.Errorf("%w (%w)", errNoTLS, err)
	}
	return fmt.Errorf("TLS handshake: %w", err)
}
