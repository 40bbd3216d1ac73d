package pgwire

// NotificationResponse delivers a NOTIFY. It may arrive at any time.
type NotificationResponse struct {
	ProcessID uint32
	Channel   string
	Payload   string
}

// Append adds the encoded message to dst.
func (m *NotificationResponse) Append(dst []byte) []byte {
	dst, at := begin(dst, TypeNotificationResponse)
	dst = appendInt32(dst, int32(m.ProcessID))
	dst = appendString(dst, m.Channel)
	return finish(appendString(dst, m.Payload), at)
}

// Decode reads a message body.
func (m *NotificationResponse) Decode(body []byte) error {
	c := cursor{b: body}
	m.ProcessID = uint32(c.int32())
	m.Channel, m.Payload = c.string(), c.string()
	return c.done("NotificationResponse")
}
