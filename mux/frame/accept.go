package frame

// Accept says that the application took the channel the other side opened.
type Accept struct {
	Channel uint32
}

// Append appends the frame to dst.
func (f Accept) Append(dst []byte) []byte {
	return Header{Type: TypeAccept, Channel: f.Channel}.Append(dst)
}

// Decode reads the frame, which has no body.
func (f *Accept) Decode(h Header, body []byte) error {
	f.Channel = h.Channel
	return h.of(TypeAccept, body)
}
