package frame

import "encoding/binary"

const (
	resumeSize  = 80
	resumedSize = 48
	// ProofSize is the size of the proof at the end of Resume, Resumed and Auth, in bytes.
	ProofSize = 32
)

// Resume is a client's first frame on a connection that continues a session, in place of Hello.
type Resume struct {
	Version  uint8
	Epoch    uint32   // higher than any before in this session
	Last     uint64   // number of the last sequenced frame received
	Session  [16]byte // as the server's Hello said
	Instance [16]byte // the server's, as its Hello said
	Proof    [ProofSize]byte
}

// Append appends the frame to dst.
func (f *Resume) Append(dst []byte) []byte {
	dst = Header{Type: TypeResume, Length: resumeSize}.Append(dst)
	dst = append(dst, f.Version, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, f.Epoch)
	dst = binary.BigEndian.AppendUint64(dst, f.Last)
	dst = append(dst, f.Session[:]...)
	dst = append(dst, f.Instance[:]...)
	return append(dst, f.Proof[:]...)
}

// Decode reads the frame's body.
func (f *Resume) Decode(h Header, body []byte) error {
	if err := h.of(TypeResume, body); err != nil {
		return err
	}
	*f = Resume{Version: body[0], Epoch: binary.BigEndian.Uint32(body[4:]), Last: binary.BigEndian.Uint64(body[8:])}
	copy(f.Session[:], body[16:])
	copy(f.Instance[:], body[32:])
	copy(f.Proof[:], body[48:])
	switch {
	case h.Ack != 0, body[1]|body[2]|body[3] != 0:
		return errReserved
	case f.Version == 0, f.Epoch == 0:
		return errValue
	}
	return nil
}

// Resumed is the server's answer to Resume.
type Resumed struct {
	Epoch uint32 // Resume's
	Last  uint64 // number of the last sequenced frame received
	Proof [ProofSize]byte
}

// Append appends the frame to dst.
func (f *Resumed) Append(dst []byte) []byte {
	dst = Header{Type: TypeResumed, Length: resumedSize}.Append(dst)
	dst = binary.BigEndian.AppendUint32(dst, f.Epoch)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, f.Last)
	return append(dst, f.Proof[:]...)
}

// Decode reads the frame's body.
func (f *Resumed) Decode(h Header, body []byte) error {
	if err := h.of(TypeResumed, body); err != nil {
		return err
	}
	*f = Resumed{Epoch: binary.BigEndian.Uint32(body), Last: binary.BigEndian.Uint64(body[8:])}
	copy(f.Proof[:], body[16:])
	switch {
	case h.Ack != 0, binary.BigEndian.Uint32(body[4:]) != 0:
		return errReserved
	case f.Epoch == 0:
		return errValue
	}
	return nil
}
