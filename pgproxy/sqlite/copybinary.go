package sqlite

import (
	"encoding/binary"
	"errors"
	"io"
	"math"

	"github.com/headpond/headpond/pgwire"
)

// take returns the next n bytes, valid until the next call. It returns io.EOF at the end of the data and
// io.ErrUnexpectedEOF if fewer than n bytes are left.
func (in *copyIn) take(n int) ([]byte, error) {
	for len(in.buf)-in.at < n {
		if err := in.more(); err != nil {
			if errors.Is(err, io.EOF) && len(in.buf) > in.at {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	in.at += n
	return in.buf[in.at-n : in.at], nil
}

// field is take inside a header or a row, where the data must not end.
func (in *copyIn) field(n int) ([]byte, error) {
	b, err := in.take(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = in.bad("unexpected EOF in COPY data")
	}
	return b, err
}

// binaryHeader reads the header of the binary format.
func (in *copyIn) binaryHeader() error {
	b, err := in.field(len(copySignature) + 8)
	if err != nil {
		return err
	}
	if string(b[:len(copySignature)]) != copySignature {
		return in.bad("COPY file signature not recognized")
	}
	flags, extension := binary.BigEndian.Uint32(b[len(copySignature):]), binary.BigEndian.Uint32(b[len(copySignature)+4:])
	if flags>>16 != 0 {
		return in.bad("unrecognized critical flags in COPY file header")
	}
	if extension > math.MaxInt32 {
		return in.bad("invalid COPY file header (wrong length)")
	}
	_, err = in.field(int(extension))
	return err
}

// binaryRows inserts the rows of the binary format.
func (in *copyIn) binaryRows() (n int, err error) {
	if err := in.binaryHeader(); err != nil {
		return 0, err
	}
	for {
		in.line++
		b, err := in.take(2)
		if errors.Is(err, io.EOF) { // old clients omit the trailer
			return n, nil
		}
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = in.bad("unexpected EOF in COPY data")
			}
			return n, err
		}
		fields := int16(binary.BigEndian.Uint16(b))
		if fields == -1 {
			return n, nil
		}
		if int(fields) != len(in.columns) {
			return n, in.bad("row field count is %d, expected %d", fields, len(in.columns))
		}
		if err := in.binaryRow(); err != nil {
			return n, err
		}
		n++
	}
}

func (in *copyIn) binaryRow() error {
	for i := range in.columns {
		b, err := in.field(4)
		if err != nil {
			return err
		}
		size := int32(binary.BigEndian.Uint32(b))
		var raw []byte
		switch {
		case size < -1:
			return in.bad("invalid field size")
		case int(size) > in.s.b.cfg.MaxMessage:
			return in.located(sqlError(pgwire.StateProgramLimitExceeded, "a value of %d bytes is over the limit of %d", size, in.s.b.cfg.MaxMessage), in.columns[i])
		case size >= 0:
			if raw, err = in.field(int(size)); err != nil {
				return err
			}
		}
		if err := in.bind(i, raw); err != nil {
			return err
		}
	}
	return in.insert()
}
