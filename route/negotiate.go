package route

import (
	"encoding/xml"
	"mime"
	"slices"
	"strconv"
	"strings"
)

// Codec is a media type in addition to JSON. Its functions may be called concurrently.
type Codec struct {
	// ContentType is the media type as it is sent. Parameters such as a charset do not affect which requests it
	// matches.
	ContentType string
	// Marshal appends v, a pointer to the response value, to dst and returns the result. If Marshal is nil, responses
	// do not use this type.
	Marshal func(dst []byte, v any) ([]byte, error)
	// Unmarshal reads data into v, a pointer to a value of the request type. v must not refer to data afterwards.
	// Fields with another source than the body are ignored. If Unmarshal is nil, requests do not use this type.
	Unmarshal func(data []byte, v any) error
}

// XML is application/xml by encoding/xml.
var XML = Codec{
	ContentType: "application/xml",
	Marshal: func(dst []byte, v any) ([]byte, error) {
		b, err := xml.Marshal(v)
		return append(dst, b...), err
	},
	Unmarshal: xml.Unmarshal,
}

// codec is a Codec and its media type without parameters.
type codec struct {
	Codec
	mediaType string
}

// reader returns the codec for a request's media type, nil if JSON reads it or there is none.
func (e *Endpoint) reader(mediaType string) *codec {
	i := slices.IndexFunc(e.codecs, func(c codec) bool { return c.mediaType == mediaType && c.Unmarshal != nil })
	if i < 0 {
		return nil
	}
	return &e.codecs[i]
}

// codec returns the codec that the client prefers for the response, nil for JSON's own.
func (x *exchange) codec() *codec {
	if len(x.ep.codecs) == 0 {
		return nil
	}
	mediaType := x.ep.preferred(x.r.Header["Accept"])
	i := slices.IndexFunc(x.ep.codecs, func(c codec) bool { return c.mediaType == mediaType && c.Marshal != nil })
	if i < 0 {
		return nil
	}
	return &x.ep.codecs[i]
}

// acceptable reports whether the client accepts a media type of the response.
func (x *exchange) acceptable() bool {
	accept := x.r.Header["Accept"]
	if len(accept) == 0 || len(accept) == 1 && (accept[0] == "*/*" || accept[0] == typeJSON) {
		return true
	}
	return x.ep.answer != nil || x.ep.preferred(accept) != ""
}

// offered returns the possible media types of a response, best first.
func (e *Endpoint) offered() []string {
	types := []string{typeJSON}
	for _, c := range e.codecs {
		if c.mediaType != typeJSON && c.Marshal != nil {
			types = append(types, c.mediaType)
		}
	}
	return types
}

func (e *Endpoint) mediaTypes() string { return strings.Join(e.offered(), " or ") }

// preferred returns the media type that Accept headers prefer, "" if they accept none.
func (e *Endpoint) preferred(accept []string) string {
	if len(accept) == 0 || len(accept) == 1 && accept[0] == "" {
		return typeJSON
	}
	best, bestQ := "", 0.0
	for _, offer := range e.offered() {
		if q := quality(accept, offer); q > bestQ {
			best, bestQ = offer, q
		}
	}
	return best
}

// quality returns the weight that Accept headers give a media type: that of the most specific matching range (RFC 9110,
// section 12.5.1).
func quality(accept []string, mediaType string) float64 {
	kind, _, _ := strings.Cut(mediaType, "/")
	q, specific := 0.0, -1
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			pattern, params, err := mime.ParseMediaType(item)
			if err != nil {
				continue
			}
			if pattern == "*" { // sent by some old clients
				pattern = "*/*"
			}
			level := slices.Index([]string{"*/*", kind + "/*", mediaType}, pattern)
			if level <= specific {
				continue
			}
			specific, q = level, 1
			if w, ok := params["q"]; ok {
				if q, err = strconv.ParseFloat(w, 64); err != nil {
					q = 0
				}
			}
		}
	}
	return q
}

// bodyTypes names the possible media types of a body in an error text.
func (e *Endpoint) bodyTypes() string { return strings.Join(e.accepted(), " or ") }

// accepted returns the media types a body can be.
func (e *Endpoint) accepted() []string {
	var types []string
	if e.takesJSON {
		types = append(types, typeJSON)
		for _, c := range e.codecs {
			if c.mediaType != typeJSON && c.Unmarshal != nil {
				types = append(types, c.mediaType)
			}
		}
	}
	if e.takesForm {
		types = append(types, typeForm)
	}
	if e.takesMultipart {
		types = append(types, typeMultipart)
	}
	return types
}
