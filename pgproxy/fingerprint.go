package pgproxy

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"github.com/headpond/headpond/pgwire"
)

// A statement that is prepared again, on another server connection, may have changed because of DDL meanwhile. A
// server that had the statement before refuses to execute it in this case (0A000), because drivers write parameters
// and read rows by the description that they got when they prepared it, and would silently misread others. So the
// gateway compares a server's description of the statement with the one that the client got, and executes the
// statement only if both are the same. A client that asks for a description of each portal needs no such protection.

var fingerprintSeed = maphash.MakeSeed()

// firstOwnType is the first OID of types that are not PostgreSQL's own (FirstNormalObjectId). These OIDs differ
// between servers that hold the same tables, unless one is the other's standby, so that all of them count as one
// type.
const firstOwnType = 16384

// fingerprintOf hashes a ParameterDescription, a RowDescription or NoData: the types, and the names of columns, but
// not the tables. If the body is longer than a Reader can show, body is its beginning; size is the full length in
// bytes.
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

// described compares a server's description of a statement, or of a portal made from it, with the client's. o is the
// op that the description answers. FETCH has the columns of the cursor that there is when it runs, if any: it may have
// others each time, on one server connection, too.
func (m *machine) described(o *op, msg message) {
	if o.st.fetches {
		return
	}
	is, described, known := fingerprintOf(msg.typ, msg.body, msg.size()), &o.on.columns, &o.st.columns
	if msg.typ == pgwire.TypeParameterDescription {
		described, known = &o.on.parameters, &o.st.parameters
	}
	*described = is
	switch {
	case o.kind == opDescribe:
		*known = is
	case *known != 0 && *known != is:
		m.redescribed = o.st
	}
}

// fetches reports whether a text is a FETCH.
func fetches(text []byte) bool { return begins(text[spaceLength(text, ';'):], "fetch") }

// outdated returns the error of a server whose statement has changed. Drivers recognize it by the routine, and
// prepare the statement again.
func outdated() *pgwire.ErrorResponse {
	m := errorResponse(pgwire.SeverityError, pgwire.StateFeatureNotSupported, "cached plan must not change result type", "")
	m.Routine = "RevalidateCachedQuery"
	return m
}
