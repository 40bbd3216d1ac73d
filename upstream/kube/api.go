package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Bounds of an API server's answers.
const (
	// maxEvent bounds one slice: an object of the API has at most 3 MiB. A slice has at most 1,000 endpoints, which
	// need less than 1 MiB.
	maxEvent = 8 << 20
	// maxList bounds a list: upstream takes 1,000 endpoints, which are ten slices.
	maxList  = 64 << 20
	maxError = 64 << 10
)

// status is the API's description of an error.
type status struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// apiError is an error that the API server returned.
type apiError struct {
	code       int
	message    string
	retryAfter time.Duration // 0 = the server gave none
}

func (e *apiError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("the API server answers %d %s", e.code, http.StatusText(e.code))
	}
	return fmt.Sprintf("the API server answers %d: %.500s", e.code, e.message)
}

// gone reports whether a version can no longer be used: the API server no longer has it, or does not have it yet
// (after a restored backup).
func gone(err error) bool {
	var e *apiError
	return errors.As(err, &e) && (e.code == http.StatusGone || e.code == http.StatusGatewayTimeout || strings.Contains(e.message, "resource version"))
}

// list is an EndpointSliceList.
type list struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []slice `json:"items"`
}

// event is one line of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// serviceLabel is the label of a slice that names its Service.
const serviceLabel = "kubernetes.io/service-name"

// get requests the Service's slices. The caller closes the body.
func (s *Source) get(ctx context.Context, c *client, query url.Values) (*http.Response, error) {
	query.Set("labelSelector", serviceLabel+"="+s.name)
	u := c.base.JoinPath("apis/discovery.k8s.io/v1/namespaces", s.namespace, "endpointslices")
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "headpond")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, plainError(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		return nil, errorOf(resp)
	}
	return resp, nil
}

// plainError removes the query from an error, as it is long and always the same.
func plainError(err error) error {
	var u *url.Error
	if !errors.As(err, &u) {
		return err
	}
	where, _, _ := strings.Cut(u.URL, "?")
	return fmt.Errorf("GET %s: %w", where, u.Err)
}

// errorOf returns the error in the answer of an API server, or of a proxy in front of it.
func errorOf(resp *http.Response) error {
	e := &apiError{code: resp.StatusCode}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.retryAfter = time.Duration(seconds) * time.Second
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var st status
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "application/json" && json.Unmarshal(body, &st) == nil {
		e.message = st.Message
	}
	return e
}

// list requests all slices, as of version or later; "" = as of now, "0" = as in the API server's cache.
func (s *Source) list(ctx context.Context, c *client, version string) (*list, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	query := url.Values{}
	if version != "" {
		query.Set("resourceVersion", version)
		query.Set("resourceVersionMatch", "NotOlderThan")
	}
	resp, err := s.get(ctx, c, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var l list
	if err := json.NewDecoder(&budget{resp.Body, maxList}).Decode(&l); err != nil {
		return nil, fmt.Errorf("a list of EndpointSlices: %w", err)
	}
	if l.Metadata.ResourceVersion == "" {
		return nil, errors.New("a list of EndpointSlices has no version; is that an API server?")
	}
	return &l, nil
}

// stream is an open watch.
type stream struct {
	body    io.ReadCloser
	limit   *budget
	decoder *json.Decoder
}

// watch requests all changes since version; the server ends the watch after life.
func (s *Source) watch(ctx context.Context, c *client, version string, life time.Duration) (*stream, error) {
	resp, err := s.get(ctx, c, url.Values{ //nolint:bodyclose // the user of the stream closes it
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}, "timeoutSeconds": {strconv.Itoa(int(life / time.Second))},
	})
	if err != nil {
		return nil, err
	}
	limit := &budget{resp.Body, maxEvent}
	return &stream{resp.Body, limit, json.NewDecoder(limit)}, nil
}

// next waits for a change. It returns the slice and the type of the event; a bookmark only has the slice's version. The
// error is io.EOF when the server ends the watch.
func (w *stream) next() (sl slice, kind string, err error) {
	w.limit.left = maxEvent
	var ev event
	if err := w.decoder.Decode(&ev); err != nil {
		return sl, "", err
	}
	if ev.Type == eventError {
		var st status
		if err := json.Unmarshal(ev.Object, &st); err != nil {
			return sl, "", fmt.Errorf("an error within a watch: %w", err)
		}
		return sl, "", &apiError{code: st.Code, message: st.Message}
	}
	if err := json.Unmarshal(ev.Object, &sl); err != nil {
		return sl, "", fmt.Errorf("an EndpointSlice: %w", err)
	}
	return sl, ev.Type, nil
}

// Types of events; others are ignored.
const (
	eventAdded    = "ADDED"
	eventModified = "MODIFIED"
	eventDeleted  = "DELETED"
	eventError    = "ERROR"
)

// budget limits the bytes that are read.
type budget struct {
	r    io.Reader
	left int
}

var errTooLarge = errors.New("the answer is too large")

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
