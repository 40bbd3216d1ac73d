package pgwire

import "fmt"

// Severities of ErrorResponse and NoticeResponse.
const (
	SeverityError   = "ERROR"
	SeverityFatal   = "FATAL"
	SeverityPanic   = "PANIC"
	SeverityWarning = "WARNING"
	SeverityNotice  = "NOTICE"
)

// ErrorResponse reports an error. It is a Go error too.
type ErrorResponse struct {
	Severity            string // 'S', may be translated by the server
	SeverityUnlocalized string // 'V'; empty from servers before 9.6
	Code                string // 'C', the SQLSTATE
	Message             string // 'M'
	Detail              string // 'D'
	Hint                string // 'H'
	Position            string // 'P'
	InternalPosition    string // 'p'
	InternalQuery       string // 'q'
	Where               string // 'W'
	Schema              string // 's'
	Table               string // 't'
	Column              string // 'c'
	DataType            string // 'd'
	Constraint          string // 'n'
	File, Line, Routine string // 'F', 'L', 'R'
	unknown             []errorField
}

type errorField struct {
	code  byte
	value string
}

// Append adds the encoded message to dst.
func (m *ErrorResponse) Append(dst []byte) []byte { return m.append(dst, TypeErrorResponse) }

// Decode reads a message body.
func (m *ErrorResponse) Decode(body []byte) error { return m.decode(body, "ErrorResponse") }

// Error returns severity, message and SQLSTATE in one line.
func (m *ErrorResponse) Error() string {
	return fmt.Sprintf("%s: %s (SQLSTATE %s)", m.severity(), m.Message, m.Code)
}

// Fatal reports whether the server ends the session with this error.
func (m *ErrorResponse) Fatal() bool {
	s := m.severity()
	return s == SeverityFatal || s == SeverityPanic
}

func (m *ErrorResponse) severity() string {
	if m.SeverityUnlocalized != "" {
		return m.SeverityUnlocalized
	}
	return m.Severity
}

// field returns the field with a code; nil = unknown.
func (m *ErrorResponse) field(code byte) *string {
	for i, f := range errorCodes {
		if byte(f) == code {
			return m.fields()[i]
		}
	}
	return nil
}

// errorCodes are the field codes in the order of fields.
const errorCodes = "SVCMDHPpqWstcdnFLR"

func (m *ErrorResponse) fields() [18]*string {
	return [18]*string{
		&m.Severity, &m.SeverityUnlocalized, &m.Code, &m.Message, &m.Detail, &m.Hint,
		&m.Position, &m.InternalPosition, &m.InternalQuery, &m.Where, &m.Schema, &m.Table,
		&m.Column, &m.DataType, &m.Constraint, &m.File, &m.Line, &m.Routine,
	}
}

func (m *ErrorResponse) append(dst []byte, typ byte) []byte {
	dst, at := begin(dst, typ)
	for i, f := range m.fields() {
		if *f != "" {
			dst = appendString(append(dst, errorCodes[i]), *f)
		}
	}
	for _, u := range m.unknown {
		dst = appendString(append(dst, u.code), u.value)
	}
	return finish(append(dst, 0), at)
}

func (m *ErrorResponse) decode(body []byte, name string) error {
	c := cursor{b: body}
	*m = ErrorResponse{}
	for {
		code := c.byte()
		if code == 0 {
			return c.done(name)
		}
		value := c.string()
		if f := m.field(code); f != nil {
			*f = value
		} else {
			m.unknown = append(m.unknown, errorField{code, value})
		}
	}
}
