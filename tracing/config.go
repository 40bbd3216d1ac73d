package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/httpwire"
)

func init() {
	extend.RegisterExtension(extend.Extension{New: newPart, Config: config.Extension{File: &FileKeys{}, Check: check}})
}

// FileKeys are the keys at the top of the file.
type FileKeys struct {
	Tracing *Settings `conf:"tracing"` // nil: tracing is off
}

// Settings is the section "tracing".
type Settings struct {
	Endpoint string      `conf:"endpoint" required:"true"`                          // URL of a collector that speaks OTLP over HTTP, without /v1/traces
	Sample   int         `conf:"sample" default:"100" min:"0" max:"1000000000"`     // one in this many of the requests without a client's trace; 0: none
	Parents  Parents     `conf:"parents" default:"follow"`                          // how a client's decision counts
	Service  string      `conf:"service_name" default:"headpond"`                   // the attribute service.name
	Headers  []Header    `conf:"headers" key:"Name" scalar:"Value" maxlen:"16"`     // of requests to the collector
	CA       config.Path `conf:"ca"`                                                // PEM, authorities of the collector's certificate; empty: the system's
	Queue    int         `conf:"max_queue" default:"8192" min:"512" max:"10000000"` // spans that wait for the collector
}

// Parents says how a client's decision to record a trace counts.
type Parents string

// The values of Parents.
const (
	FollowParents Parents = "follow" // requests that the client records are traced, those that it does not record are not
	SampleParents Parents = "sample" // Sample decides about all requests, which continue the client's trace
)

// Values implements config.Enum.
func (Parents) Values() []string { return []string{"follow", "sample"} }

// Header is a header of requests to the collector. In the file its name is the key.
type Header struct {
	Name  string        `conf:"-"`
	Value config.Secret `conf:"value"`
}

// tracesPath is where a collector takes spans (OpenTelemetry Protocol, OTLP/HTTP Request).
const tracesPath = "/v1/traces"

// url is where the spans go.
func (s *Settings) url() string {
	base := strings.TrimSuffix(strings.TrimSuffix(s.Endpoint, "/"), tracesPath)
	return strings.TrimSuffix(base, "/") + tracesPath
}

// readCA reads the file CA; nil if there is none.
func (s *Settings) readCA() ([]byte, error) {
	if s.CA == "" {
		return nil, nil
	}
	return s.CA.Read()
}

// tlsConfig returns the settings for a collector whose authorities are given as PEM, nil for the system's.
func tlsConfig(ca []byte) *tls.Config {
	if ca == nil {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca) // check has verified that there is one
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// check checks the section "tracing".
func check(c *config.Checker) {
	s := config.PartOf[FileKeys](c.Config).Tracing
	if s == nil {
		return
	}
	if s.Endpoint != "" {
		u, err := url.Parse(s.Endpoint)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
			c.Report(c.Mark(&s.Endpoint), "endpoint: want the URL of a collector such as http://127.0.0.1:4318, without user, query and fragment")
		case u.Scheme == "http" && s.CA != "":
			c.Report(c.Mark(&s.CA), "ca: needs an endpoint with https://")
		case u.Port() == "4317":
			c.Warn(c.Mark(&s.Endpoint), "endpoint: collectors speak OTLP over gRPC at port 4317, and over HTTP, which is used here, at 4318")
		}
	}
	for i := range s.Headers {
		if h := &s.Headers[i]; !httpwire.ValidToken(h.Name) || !httpwire.ValidValue(h.Value.Reveal()) {
			c.Report(c.Mark(&h.Value, &s.Headers), "headers: %q is no header, or its value has control characters", config.Clip(h.Name))
		}
	}
	c.ClientFiles(&s.CA, new(config.Path), new(config.Path))
}
