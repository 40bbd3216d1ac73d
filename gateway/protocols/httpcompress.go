package protocols

import (
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
)

// Compress compresses answers; see httpproxy.Compression.
type Compress struct {
	Encodings []string `conf:"encodings" maxlen:"2"`                            // the preferred first; empty: zstd, gzip
	Types     []string `conf:"types" maxlen:"64"`                               // media types; empty: text, JSON, XML, scripts, SVG
	MinBytes  int      `conf:"min_bytes" default:"1024" min:"1" max:"16777216"` // of answers with a length
}

// settings returns the proxy's form.
func (z *Compress) settings() *httpproxy.Compression {
	if z == nil {
		return nil
	}
	return &httpproxy.Compression{Encodings: z.Encodings, Types: z.Types, MinBytes: int64(z.MinBytes)}
}

// checkCompress reports problems of how answers are compressed.
func checkCompress(c *config.Checker, r *Route) {
	z := r.Compress
	if z == nil {
		return
	}
	for i := range z.Encodings {
		switch e := &z.Encodings[i]; {
		case !slices.Contains(httpproxy.Compressions(), *e):
			c.Unknown(c.Mark(e), "encoding", *e, httpproxy.Compressions())
		case slices.Contains(z.Encodings[:i], *e):
			c.Report(c.Mark(e), "encodings: %s is there twice", *e)
		}
	}
	for i := range z.Types {
		if err := httpproxy.CheckCompressedType(z.Types[i]); err != nil {
			c.Report(c.Mark(&z.Types[i]), "types: %v", err)
		}
	}
	if r.answersItself() {
		c.Report(c.Mark(&r.Compress), "compress: a route with %s sends no answer of a backend", strings.Join([]string{"redirect", "respond"}, " or "))
	}
}
