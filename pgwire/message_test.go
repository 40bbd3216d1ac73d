package pgwire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/pgwire"
)

// coded has the methods of both implementations of a message.
type coded interface {
	pgwire.Message
	Decode(body []byte) error
}

// peer is a message of the second implementation.
type peer interface {
	Decode(body []byte) error
	Encode(dst []byte) ([]byte, error)
}

// pair is a message and its counterpart in pgproto3, nil if that cannot stand for it.
type pair struct {
	ours  func() coded
	peers func() peer
}

func of[T any, P interface {
	*T
	coded
}]() func() coded {
	return func() coded { return P(new(T)) }
}

func in[T any, P interface {
	*T
	peer
}]() func() peer {
	return func() peer { return P(new(T)) }
}

// pairs has every message with a type byte, the frontend's in lower half.
var pairs = []pair{
	{of[pgwire.Bind](), in[pgproto3.Bind]()},
	{of[pgwire.Close](), in[pgproto3.Close]()},
	{of[pgwire.CopyFail](), in[pgproto3.CopyFail]()},
	{of[pgwire.Describe](), in[pgproto3.Describe]()},
	{of[pgwire.Execute](), in[pgproto3.Execute]()},
	{of[pgwire.Flush](), in[pgproto3.Flush]()},
	{of[pgwire.FunctionCall](), nil}, // pgproto3 refuses some that PostgreSQL takes
	{of[pgwire.Parse](), in[pgproto3.Parse]()},
	{of[pgwire.PasswordMessage](), in[pgproto3.PasswordMessage]()},
	{of[pgwire.SASLInitialResponse](), nil}, // pgproto3 makes no data and empty data the same
	{of[pgwire.SASLResponse](), in[pgproto3.SASLResponse]()},
	{of[pgwire.Query](), in[pgproto3.Query]()},
	{of[pgwire.Sync](), in[pgproto3.Sync]()},
	{of[pgwire.Terminate](), in[pgproto3.Terminate]()},
	{of[pgwire.CopyData](), in[pgproto3.CopyData]()},
	{of[pgwire.CopyDone](), in[pgproto3.CopyDone]()},
	{of[pgwire.Authentication](), nil},
	{of[pgwire.BackendKeyData](), in[pgproto3.BackendKeyData]()},
	{of[pgwire.BindComplete](), in[pgproto3.BindComplete]()},
	{of[pgwire.CloseComplete](), in[pgproto3.CloseComplete]()},
	{of[pgwire.CommandComplete](), in[pgproto3.CommandComplete]()},
	{of[pgwire.CopyBothResponse](), in[pgproto3.CopyBothResponse]()},
	{of[pgwire.CopyInResponse](), in[pgproto3.CopyInResponse]()},
	{of[pgwire.CopyOutResponse](), in[pgproto3.CopyOutResponse]()},
	{of[pgwire.DataRow](), in[pgproto3.DataRow]()},
	{of[pgwire.EmptyQueryResponse](), in[pgproto3.EmptyQueryResponse]()},
	{of[pgwire.ErrorResponse](), nil}, // pgproto3 orders the fields otherwise
	{of[pgwire.NoticeResponse](), nil},
	{of[pgwire.FunctionCallResponse](), in[pgproto3.FunctionCallResponse]()},
	{of[pgwire.NegotiateProtocolVersion](), nil}, // pgproto3 knows the minor version only
	{of[pgwire.NoData](), in[pgproto3.NoData]()},
	{of[pgwire.NotificationResponse](), in[pgproto3.NotificationResponse]()},
	{of[pgwire.ParameterDescription](), in[pgproto3.ParameterDescription]()},
	{of[pgwire.ParameterStatus](), in[pgproto3.ParameterStatus]()},
	{of[pgwire.ParseComplete](), in[pgproto3.ParseComplete]()},
	{of[pgwire.PortalSuspended](), in[pgproto3.PortalSuspended]()},
	{of[pgwire.ReadyForQuery](), in[pgproto3.ReadyForQuery]()},
	{of[pgwire.RowDescription](), in[pgproto3.RowDescription]()},
}

// samples has a filled value of the messages that have fields.
var samples = []coded{
	&pgwire.Bind{Portal: "p", Statement: "s", ParamFormats: []int16{1, 0}, Params: [][]byte{nil, {}, []byte("x")}, ResultFormats: []int16{1}},
	&pgwire.Close{Object: 'S', Name: "s"},
	&pgwire.Describe{Object: 'P', Name: ""},
	&pgwire.CopyFail{Message: "why"},
	&pgwire.Execute{Portal: "p", MaxRows: 1 << 31},
	&pgwire.FunctionCall{Function: 7, ArgFormats: []int16{1}, Args: [][]byte{nil, []byte("a")}, ResultFormat: 1},
	&pgwire.Parse{Name: "n", Query: "select $1", ParamTypes: []uint32{23, 1 << 31}},
	&pgwire.PasswordMessage{Password: "pw"},
	&pgwire.SASLInitialResponse{Mechanism: "SCRAM-SHA-256", Data: []byte("n,,")},
	&pgwire.SASLResponse{Data: []byte("c=biws")},
	&pgwire.Query{SQL: "select 1"},
	&pgwire.CopyData{Data: []byte("1\t2\n")},
	&pgwire.Authentication{Kind: pgwire.AuthMD5, Salt: [4]byte{1, 2, 3, 4}},
	&pgwire.Authentication{Kind: pgwire.AuthSASL, Mechanisms: []string{"A", "B"}},
	&pgwire.Authentication{Kind: pgwire.AuthSASLFinal, Data: []byte("v=")},
	&pgwire.BackendKeyData{ProcessID: 9, Key: bytes.Repeat([]byte{7}, 32)},
	&pgwire.CommandComplete{Tag: "SELECT 1"},
	&pgwire.CopyInResponse{Format: 1, Columns: []int16{1, 1}},
	&pgwire.CopyOutResponse{Columns: []int16{0}},
	&pgwire.CopyBothResponse{Columns: []int16{}},
	&pgwire.DataRow{Values: [][]byte{nil, {}, []byte("v")}},
	&pgwire.ErrorResponse{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "42601", Message: "m", Detail: "d", Hint: "h", Line: "3"},
	&pgwire.FunctionCallResponse{Result: []byte("r")},
	&pgwire.NegotiateProtocolVersion{Version: pgwire.Version32, Options: []string{"_pq_.x"}},
	&pgwire.NotificationResponse{ProcessID: 3, Channel: "c", Payload: "p"},
	&pgwire.ParameterDescription{Types: []uint32{25}},
	&pgwire.ParameterStatus{Name: "TimeZone", Value: "UTC"},
	&pgwire.ReadyForQuery{Status: pgwire.TxFailed},
	&pgwire.RowDescription{Fields: []pgwire.Field{{Name: "a", TableOID: 1, Column: 2, TypeOID: 25, TypeSize: -1, TypeModifier: -1, Format: 1}}},
}

// body returns the body of a message after a check of its length word.
func body(t testing.TB, message []byte) []byte {
	t.Helper()
	if len(message) < 5 || int(binary.BigEndian.Uint32(message[1:])) != len(message)-1 {
		t.Fatalf("length word of % x", message)
	}
	return message[5:]
}

func TestRoundTrip(t *testing.T) {
	for _, m := range samples {
		wire := m.Append([]byte("kept"))
		if string(wire[:4]) != "kept" {
			t.Fatalf("%T does not append", m)
		}
		b := body(t, wire[4:])
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(coded)
		if err := got.Decode(b); err != nil {
			t.Errorf("%T: %v", m, err)
		} else if !reflect.DeepEqual(got, m) {
			t.Errorf("%T: %+v became %+v", m, m, got)
		}
		for n := range b {
			err := got.Decode(b[:n])
			if err == nil && !bytes.Equal(got.Append(nil)[5:], b[:n]) {
				t.Errorf("%T accepts a truncated body", m)
			} else if err != nil && !errors.Is(err, pgwire.ErrMalformed) {
				t.Errorf("%T: %v does not wrap ErrMalformed", m, err)
			}
		}
	}
}

// FuzzMessages checks that what decodes encodes to the same bytes, and that pgproto3 reads the
// same: its encoding of what it decoded equals ours.
func FuzzMessages(f *testing.F) {
	for i, p := range pairs {
		for _, m := range samples {
			if reflect.TypeOf(m) == reflect.TypeOf(p.ours()) {
				f.Add(byte(i), m.Append(nil)[5:])
			}
		}
		f.Add(byte(i), []byte{})
	}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		p := pairs[int(which)%len(pairs)]
		m := p.ours()
		if err := m.Decode(data); err != nil {
			if !errors.Is(err, pgwire.ErrMalformed) {
				t.Fatalf("%T: %v does not wrap ErrMalformed", m, err)
			}
			return
		}
		wire := m.Append(nil)
		again := p.ours()
		if err := again.Decode(body(t, wire)); err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%T: %+v became %+v: %v", m, m, again, err)
		}
		if p.peers == nil {
			return
		}
		other := p.peers()
		if err := other.Decode(data); err != nil {
			t.Fatalf("%T: pgproto3 refuses % x: %v", m, data, err)
		}
		theirs, err := other.Encode(nil)
		if err != nil || !bytes.Equal(theirs, wire) {
			t.Fatalf("%T: pgproto3 encodes % x, we % x (%v)", m, theirs, wire, err)
		}
	})
}

func TestErrorKeepsUnknownFields(t *testing.T) {
	in := []byte("SERROR\x00C42601\x00Mm\x00Zlater\x00\x00")
	var m pgwire.ErrorResponse
	if err := m.Decode(in); err != nil || m.Code != "42601" || m.Fatal() {
		t.Fatal(m, err)
	}
	if got := m.Append(nil)[5:]; !bytes.Equal(got, in) {
		t.Fatalf("%q", got)
	}
	if m.Error() != "ERROR: m (SQLSTATE 42601)" {
		t.Error(m.Error())
	}
}
