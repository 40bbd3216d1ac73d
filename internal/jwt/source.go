package jwt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer bounds an answer of an issuer, in bytes.
const maxAnswer = 1 << 20

// EveryURL is the age at which keys of a URL are read again.
const EveryURL = 5 * time.Minute

// FromURL returns a source that gets the keys from a URL by client.
func FromURL(client *http.Client, url string) Source {
	return Source{Every: EveryURL, Read: func(ctx context.Context) ([]byte, error) { return get(ctx, client, url) }}
}

// FromIssuer returns a source that asks an issuer where its keys are (OpenID Connect Discovery 1.0, section 4), and gets them from
// there by client.
func FromIssuer(client *http.Client, issuer string) Source {
	return Source{Every: EveryURL, Read: func(ctx context.Context) ([]byte, error) {
		text, err := get(ctx, client, strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration")
		if err != nil {
			return nil, err
		}
		var about struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		if err := json.Unmarshal(text, &about); err != nil {
			return nil, fmt.Errorf("the configuration of the issuer is not JSON: %w", err)
		}
		if about.Issuer != issuer {
			return nil, fmt.Errorf("the configuration is that of issuer %.200q, not %.200q", about.Issuer, issuer)
		}
		if err := CheckURL(about.Keys); err != nil {
			return nil, fmt.Errorf("jwks_uri of the issuer: %w", err)
		}
		if strings.HasPrefix(issuer, "https:") && !strings.HasPrefix(about.Keys, "https:") {
			return nil, errors.New("jwks_uri of the issuer leaves https")
		}
		return get(ctx, client, about.Keys)
	}}
}

// CheckURL returns an error if keys cannot be got from a URL.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case u.User != nil:
		return errors.New("the URL has a user name or a password")
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Fragment != "":
		return fmt.Errorf("%.200q: want https://HOST/PATH", text)
	}
	return nil
}

// NewClient returns a client for FromURL and FromIssuer. It does not leave https by a redirect. Its connections close when they are
// idle, as keys are read every few minutes.
func NewClient(t *http.Transport) *http.Client {
	t.DisableKeepAlives = true
	return &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case len(via) >= 5:
			return errors.New("too many redirects")
		case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
			return errors.New("a redirect from https to " + r.URL.Scheme)
		}
		return nil
	}}
}

// get returns the body of a URL.
func get(ctx context.Context, client *http.Client, from string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %s", from, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("%s: an answer of more than %d bytes", from, maxAnswer)
	}
	return body, err
}
