package pgproxy

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"github.com/headpond/headpond/pgwire"
)

// A statement that is prepared again, on another server connection, may have become another one by DDL meanwhile. A
// server that has had it refuses to execute it then (0A000), because drivers write parameters and read rows by the
// description that they got when they prepared it: others would be silently misread. So the gateway compares a server's
// description of a statement with the one that clients got before, and executes nothing of it unless both are the same.
// A client that asks for a description of each portal need not be protected.

var fingerprintSeed = maphash.MakeSeed()

// firstOwnType is the first OID of types that are not PostgreSQL's own (FirstNormalObjectId). Those differ between servers that hold the same
// tables, unless one is the other's standby, so that they count as one.
const firstOwnType = 16384

// fingerprintOf sums up a ParameterDescription, a RowDescription or NoData: types, and the names of columns, and not whose columns they are. Of a
// body longer than a Reader shows, of size bytes, it is the beginning.
func fingerprintOf(typ byte, body []byte, size int) uint64 {
	const afterName = 4 + 2 + 4 + 2 + 4 + 2 // table, column, type, size, modifier, format
	var h maphash.Hash
	h.SetSeed(fingerprintSeed)
	maphash.WriteComparable(&h, size)
	for rest := body[min(2, len(body)):]; len(rest) >= 4; {
		if typ == pgwire.TypeParameterDescription {
			maphash.WriteComparable(&h, min(binary.BigEndian.Uint32(rest), firstOwnType))
			rest = rest[4:]
			continue
		}
		end := bytes.IndexByte(rest, 0) + 1
		if end == 0 || len(rest) < end+afterName {
			break
		}
		_, _ = h.Write(rest[:end])
		maphash.WriteComparable(&h, min(binary.BigEndian.Uint32(rest[end+6:]), firstOwnType))
		rest = rest[end+afterName:]
	}
	return h.Sum64() | 1
}

// described checks a server's description of a statement, or of a portal made from it: o is the op that it answers.
func (m *machine) described(o *op, msg message) {
	is, described, told := fingerprintOf(msg.typ, msg.body, msg.size()), &o.on.columns, &o.st.columns
	if msg.typ == pgwire.TypeParameterDescription {
		described, told = &o.on.parameters, &o.st.parameters
	}
	*described = is
	switch {
	case o.kind == opDescribe:
		*told = is
	case *told != 0 && *told != is:
		m.unlike = o.st
	}
}

// outdated is the error of a server whose statement has become another one. Drivers know by the routine that preparing it again helps.
func outdated() *pgwire.ErrorResponse {
	m := errorResponse(pgwire.SeverityError, pgwire.StateFeatureNotSupported, "cached plan must not change result type", "")
	m.Routine = "RevalidateCachedQuery"
	return m
}
