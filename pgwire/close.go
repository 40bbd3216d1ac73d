package pgwire

// Kinds of objects that Close and Describe name.
const (
	ObjectStatement = 'S'
	ObjectPortal    = 'P'
)

// Close closes a prepared statement or a portal. Closing an unknown name is no error.
type Close struct {
	Object byte // ObjectStatement or ObjectPortal
	Name   string
}

// Append adds the encoded message to dst.
func (m *Close) Append(dst []byte) []byte { return appendTarget(dst, TypeClose, m.Object, m.Name) }

// Decode reads a message body.
func (m *Close) Decode(body []byte) (err error) {
	m.Object, m.Name, err = decodeTarget(body, "Close")
	return err
}
