package frame

import "encoding/binary"

const ticketSize = 20

// Ticket holds the data that a client needs to resume the session later: the last frame of a
// server's handshake in which both chose FeatureResume.
type Ticket struct {
	Token  [16]byte // random, a secret of this session
	Window uint32   // milliseconds for which the server keeps a session without a connection
}

// Append appends the frame to dst.
func (f *Ticket) Append(dst []byte) []byte {
	dst = Header{Type: TypeTicket, Length: ticketSize}.Append(dst)
	dst = append(dst, f.Token[:]...)
	return binary.BigEndian.AppendUint32(dst, f.Window)
}

// Decode reads the frame's body.
func (f *Ticket) Decode(h Header, body []byte) error {
	if err := h.of(TypeTicket, body); err != nil {
		return err
	}
	if h.Ack != 0 {
		return errReserved
	}
	copy(f.Token[:], body)
	f.Window = binary.BigEndian.Uint32(body[16:])
	return nil
}
