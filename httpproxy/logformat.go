package httpproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
)

const (
	// maxLogLine bounds a line, in bytes; a listener.LineWriter accepts twice as much.
	maxLogLine = 32 << 10
	// maxLogValue bounds the logged part of a client's value, in bytes before it is escaped.
	maxLogValue = 2 << 10
	// maxLogParts bounds the variables of a format.
	maxLogParts = 64
)

// The formats of Apache's httpd, with the client's address in place of its name.
const (
	commonFormat   = `{client} - {user} [{time_common}] "{request}" {status} {bytes_out}`
	combinedFormat = commonFormat + ` "{referer}" "{user_agent}"`
)

// logFormat is a format prepared for use. It is immutable.
type logFormat struct {
	json  bool
	parts []logPart
}

// logPart is a text, or a field of a line.
type logPart struct {
	text   string // the key in JSON
	field  *logField
	header string // name of a header, in lower case, instead of field; "" = none
}

// logField is a kind of value in lines.
type logField struct {
	name   string
	number bool // written without quotes in JSON
	text   bool // only for texts
	append func(l *logLine, dst []byte) []byte
}

// logFields lists the kinds of values: the keys in JSON, in their order, and the variables of texts.
var logFields = []logField{
	{name: "time", append: func(l *logLine, dst []byte) []byte {
		return l.began.UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	}},
	{name: "time_common", text: true, append: func(l *logLine, dst []byte) []byte { return l.began.AppendFormat(dst, "02/Jan/2006:15:04:05 -0700") }},
	{name: "listener", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, l.log.listener) }},
	{name: "client", append: func(l *logLine, dst []byte) []byte { return appendAddr(dst, l.client()) }},
	{name: "client_ip", text: true, append: func(l *logLine, dst []byte) []byte { return append(dst, l.peer.text...) }},
	{name: "peer", append: (*logLine).appendPeer},
	{name: "method", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, view(l.req.Method)) }},
	{name: "scheme", append: func(l *logLine, dst []byte) []byte { return append(dst, l.scheme()...) }},
	{name: "host", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, requestHost(withoutUser(view(l.req.Host)))) }},
	{name: "path", append: (*logLine).appendPath},
	{name: "query", append: (*logLine).appendQuery},
	{name: "uri", text: true, append: func(l *logLine, dst []byte) []byte { return l.appendQuery(l.appendPath(dst)) }},
	{name: "request", text: true, append: (*logLine).appendRequest},
	{name: "protocol", append: func(l *logLine, dst []byte) []byte { return append(dst, l.protocol...) }},
	{name: "status", number: true, append: func(l *logLine, dst []byte) []byte { return strconv.AppendInt(dst, int64(l.status), 10) }},
	{name: "bytes_in", number: true, append: func(l *logLine, dst []byte) []byte { return strconv.AppendInt(dst, l.in, 10) }},
	{name: "bytes_out", number: true, append: func(l *logLine, dst []byte) []byte { return strconv.AppendInt(dst, l.out, 10) }},
	{name: "duration_seconds", number: true, append: func(l *logLine, dst []byte) []byte { return appendSeconds(dst, l.lasted) }},
	{name: "first_byte_seconds", number: true, append: (*logLine).appendFirst},
	{name: "wait_seconds", number: true, append: (*logLine).appendWait},
	{name: "route", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, l.route) }},
	{name: "upstream", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, l.upstream) }},
	{name: "endpoint", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, l.endpoint) }},
	{name: "retries", number: true, append: (*logLine).appendRetries},
	{name: "model", append: (*logLine).appendModel},
	{name: "input_tokens", number: true, append: func(l *logLine, dst []byte) []byte { return l.tokens.appendCount(dst, inputTokens) }},
	{name: "cached_tokens", number: true, append: func(l *logLine, dst []byte) []byte { return l.tokens.appendCount(dst, cachedTokens) }},
	{name: "output_tokens", number: true, append: func(l *logLine, dst []byte) []byte { return l.tokens.appendCount(dst, outputTokens) }},
	{name: "usage", append: func(l *logLine, dst []byte) []byte { return l.tokens.appendUsage(dst) }},
	{name: "first_token_seconds", number: true, append: (*logLine).appendFirstToken},
	{name: "user", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, l.user) }},
	{name: "user_agent", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, view(l.field(userAgent))) }},
	{name: "referer", append: (*logLine).appendReferer},
	{name: "request_id", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, view(l.id)) }},
	{name: "trace_id", append: (*logLine).appendTraceID},
	{name: "tls", append: (*logLine).appendTLS},
	{name: "reason", append: func(l *logLine, dst []byte) []byte { return append(dst, l.reason...) }},
	{name: "error", append: func(l *logLine, dst []byte) []byte { return l.escape(dst, l.err) }},
}

// LogVariables lists the variables of AccessLog.Format, without their braces: header.NAME stands for a header of the request.
func LogVariables() (names []string) {
	for i := range logFields {
		names = append(names, logFields[i].name)
	}
	slices.Sort(names)
	return append(names, headerVariable+"NAME")
}

// CheckLogFormat reports what is wrong with AccessLog.Format. query is AccessLog.Query.
func CheckLogFormat(format string, query bool) error {
	_, err := newLogFormat(format, query)
	return err
}

func newLogFormat(text string, query bool) (*logFormat, error) {
	switch text {
	case "", "json":
		return jsonFormat(), nil
	case "common":
		text = commonFormat
	case "combined":
		text = combinedFormat
	}
	control := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if len(text) > maxTemplate || strings.ContainsFunc(text, control) {
		return nil, fmt.Errorf("%.40q: want a text of up to %d bytes without line breaks; each line gets one", text, maxTemplate)
	}
	split, err := splitTemplate(text, false)
	if err != nil {
		return nil, err
	}
	if len(split) > maxLogParts {
		return nil, fmt.Errorf("more than %d variables and texts", maxLogParts)
	}
	if !slices.ContainsFunc(split, func(s segment) bool { return s.variable }) {
		return nil, fmt.Errorf("%.40q: no variable, such as {path}; formats with a name are %s", text, strings.Join(LogFormats(), ", "))
	}
	f := &logFormat{}
	for _, s := range split {
		part, err := newLogPart(s, query)
		if err != nil {
			return nil, err
		}
		f.parts = append(f.parts, part)
	}
	return f, nil
}

// newLogPart makes a part from a segment.
func newLogPart(s segment, query bool) (logPart, error) {
	if !s.variable {
		return logPart{text: s.text}, nil
	}
	if header, ok := strings.CutPrefix(s.text, headerVariable); ok {
		return logPart{header: strings.ToLower(header)}, checkLoggedHeader(strings.ToLower(header))
	}
	i := slices.IndexFunc(logFields, func(f logField) bool { return f.name == s.text })
	switch {
	case i < 0:
		return logPart{}, fmt.Errorf("there is no variable {%.40s}; known are %s", s.text, strings.Join(LogVariables(), ", "))
	case !query && (s.text == "query" || s.text == "uri"):
		return logPart{}, fmt.Errorf("{%s} has the query, which may hold secrets: it needs query: true; {path} has none", s.text)
	}
	return logPart{field: &logFields[i]}, nil
}

// credentialFields lists headers with credentials.
var credentialFields = []string{
	"authorization", "proxy-authorization", "cookie", "cookie2", "api-key", "x-api-key", "x-auth-token", "x-access-token", "x-forwarded-access-token",
	"x-amz-security-token", "x-csrf-token", "x-xsrf-token", "x-vault-token", "private-token", "x-goog-api-key", "ocp-apim-subscription-key",
}

// checkLoggedHeader returns an error if a header, whose name is in lower case, must not be logged.
func checkLoggedHeader(name string) error {
	switch {
	case slices.Contains(credentialFields, name):
		return fmt.Errorf("{header.%s} would log credentials", name)
	case name == "referer":
		return errors.New("{header.referer} may hold secrets: {referer} has none")
	case !httpwire.ValidToken(name):
		return fmt.Errorf(`{header.%.40s}: a header's name has letters, digits and "-"`, name)
	}
	return nil
}

// jsonFormat returns the JSON format: all fields, each after its key as text.
func jsonFormat() *logFormat {
	f := &logFormat{json: true}
	for i := range logFields {
		if field := &logFields[i]; !field.text {
			f.parts = append(f.parts, logPart{text: `"` + field.name + `":`, field: field})
		}
	}
	return f
}

// append appends the line and its line break.
func (f *logFormat) append(l *logLine, dst []byte) []byte {
	if f.json {
		return f.appendJSON(l, dst)
	}
	for i := range f.parts {
		p := &f.parts[i]
		from := len(dst)
		switch {
		case p.field != nil:
			dst = p.field.append(l, dst)
		case p.header != "":
			dst = l.escape(dst, view(l.field(p.header)))
		default:
			dst = append(dst, p.text...)
			continue
		}
		if len(dst) == from {
			dst = append(dst, '-')
		}
	}
	return append(dst[:min(len(dst), maxLogLine)], '\n')
}

// appendJSON appends the fields, without those that have no value or do not fit.
func (f *logFormat) appendJSON(l *logLine, dst []byte) []byte {
	dst = append(dst, '{')
	for i := range f.parts {
		p := &f.parts[i]
		from := len(dst)
		if from > 1 {
			dst = append(dst, ',')
		}
		dst = append(dst, p.text...)
		if !p.field.number {
			dst = append(dst, '"')
		}
		value := len(dst)
		if dst = p.field.append(l, dst); len(dst) == value || len(dst) > maxLogLine {
			dst = dst[:from]
			continue
		}
		if !p.field.number {
			dst = append(dst, '"')
		}
	}
	return append(dst, '}', '\n')
}

func (l *logLine) scheme() string {
	if l.secure != nil {
		return "https"
	}
	return "http"
}

func (l *logLine) appendPeer(dst []byte) []byte {
	if !l.peer.addr.IsValid() {
		return dst
	}
	return netip.AddrPortFrom(l.peer.addr, l.peer.port).AppendTo(dst)
}

func (l *logLine) appendPath(dst []byte) []byte {
	path, _ := l.target()
	return l.escape(dst, view(path))
}

// appendQuery appends the query with its "?", if queries are logged.
func (l *logLine) appendQuery(dst []byte) []byte {
	if !l.log.query {
		return dst
	}
	_, query := l.target()
	return l.escape(dst, view(query))
}

// appendRequest appends the request line, or nothing without a head.
func (l *logLine) appendRequest(dst []byte) []byte {
	if len(l.req.Method) == 0 {
		return dst
	}
	dst = append(l.escape(dst, view(l.req.Method)), ' ')
	dst = append(l.appendQuery(l.appendPath(dst)), ' ')
	return append(dst, l.protocol...)
}

func (l *logLine) appendFirst(dst []byte) []byte {
	if l.first <= 0 {
		return dst
	}
	return appendSeconds(dst, l.first)
}

func (l *logLine) appendWait(dst []byte) []byte {
	if l.wait < 0 {
		return dst
	}
	return appendSeconds(dst, l.wait)
}

func (l *logLine) appendModel(dst []byte) []byte {
	if l.tokens == nil {
		return dst
	}
	return l.escape(dst, view(l.tokens.model))
}

func (l *logLine) appendFirstToken(dst []byte) []byte {
	if l.tokens == nil || l.tokens.first.IsZero() {
		return dst
	}
	return appendSeconds(dst, l.tokens.first.Sub(l.began))
}

func (l *logLine) appendRetries(dst []byte) []byte {
	if l.upstream == "" {
		return dst
	}
	return strconv.AppendInt(dst, int64(l.retries), 10)
}

func (l *logLine) appendReferer(dst []byte) []byte {
	scheme, tail := l.referer()
	return l.escape(l.escape(dst, view(scheme)), view(tail))
}

func (l *logLine) appendTLS(dst []byte) []byte {
	if l.secure == nil {
		return dst
	}
	return append(dst, tls.VersionName(l.secure.Version)...)
}

// escape appends a value chosen by a client, a server or an operator.
func (l *logLine) escape(dst []byte, value string) []byte {
	return appendEscaped(dst, value, l.log.format.json)
}

// appendAddr appends an address, or nothing for the zero Addr.
func appendAddr(dst []byte, ip netip.Addr) []byte {
	if !ip.IsValid() {
		return dst
	}
	return ip.AppendTo(dst)
}

// appendSeconds appends a duration in seconds, with microseconds.
func appendSeconds(dst []byte, d time.Duration) []byte {
	us := max(d, 0).Microseconds()
	dst = append(strconv.AppendInt(dst, us/1e6, 10), '.')
	for unit := int64(1e5); unit > 0; unit /= 10 {
		dst = append(dst, byte('0'+us/unit%10))
	}
	return dst
}
