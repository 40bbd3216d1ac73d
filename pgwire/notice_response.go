package pgwire

// NoticeResponse reports a warning or information. It may arrive at any time.
type NoticeResponse struct {
	ErrorResponse
}

// Append adds the encoded message to dst.
func (m *NoticeResponse) Append(dst []byte) []byte { return m.append(dst, TypeNoticeResponse) }

// Decode reads a message body.
func (m *NoticeResponse) Decode(body []byte) error { return m.decode(body, "NoticeResponse") }
