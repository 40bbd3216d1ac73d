// Package frame is the wire format of Headpond's multiplexed messaging: it turns frames into bytes
// and back.
//
//	dst = frame.Ping{Opaque: 7}.Append(dst)       // header and body
//
//	h, err := frame.ParseHeader(src)              // the first 16 bytes
//	var p frame.Ping
//	err = p.Decode(h, src[frame.HeaderSize:][:h.Length])
//
// A connection starts with [Magic], then frames. A frame is a header of 16
// bytes, the same for every type, and a body whose layout the type decides:
//
//	 0       1       2               4               8               12
//	+-------+-------+---------------+---------------+---------------+---------------+
//	| type  | flags | zero          | length        | channel       | ack           |
//	+-------+-------+---------------+---------------+---------------+---------------+
//
// Integers are big-endian. [ParseHeader] refuses violations of the format (an unknown type or flag,
// a length out of the type's bounds, a channel where there must be none), so that a reader decides
// how many bytes to expect only from numbers it has checked. Decoding then re-encoding yields the
// same bytes: there is one encoding of everything.
//
// Nothing here allocates. Byte slices in decoded frames point into the body
// they were decoded from and are valid as long as it is.
//
// docs/mux-protocol.md specifies the protocol.
package frame
