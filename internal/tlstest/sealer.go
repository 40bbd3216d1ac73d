// Package tlstest makes TLS 1.3 records that crypto/tls cannot be made to send.
package tlstest

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
)

// Types of a record's content (RFC 8446, section 5.1).
const (
	Alert     = 21
	Handshake = 22
	Data      = 23
)

// Contents of records.
const (
	CloseNotify = "\x01\x00"             // an Alert
	KeyUpdate   = "\x18\x00\x00\x01\x01" // a Handshake message that requests the peer's KeyUpdate
)

// Sealer makes one side's records (RFC 8446, section 5.2).
type Sealer struct {
	Next   uint64 // number of records that the side has sent with these keys
	secret []byte
	aead   cipher.AEAD
	iv     []byte
}

// NewSealer reads the first traffic secret of "CLIENT" or "SERVER" from the key log of a connection with
// TLS_AES_128_GCM_SHA256.
func NewSealer(t testing.TB, keyLog, side string) *Sealer {
	t.Helper()
	_, line, _ := strings.Cut(keyLog, side+"_TRAFFIC_SECRET_0 ")
	fields := strings.Fields(line)
	if len(fields) < 2 {
		t.Fatalf("no secret of the %s among %q", side, keyLog)
	}
	secret, err := hex.DecodeString(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	s := new(Sealer)
	s.use(t, secret)
	return s
}

// Renew changes to the side's next keys, which it uses after its KeyUpdate (RFC 8446, section 7.2).
func (s *Sealer) Renew(t testing.TB) {
	t.Helper()
	s.Next = 0
	s.use(t, expand(t, s.secret, "traffic upd", sha256.Size))
}

func (s *Sealer) use(t testing.TB, secret []byte) {
	t.Helper()
	block, err := aes.NewCipher(expand(t, secret, "key", 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	s.secret, s.aead, s.iv = secret, aead, expand(t, secret, "iv", 12)
}

// expand is HKDF-Expand-Label without a context (RFC 8446, section 7.1).
func expand(t testing.TB, secret []byte, label string, n int) []byte {
	t.Helper()
	label = "tls13 " + label
	info := string([]byte{0, byte(n), byte(len(label))}) + label + "\x00"
	b, err := hkdf.Expand(sha256.New, secret, info, n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Record returns the next record.
func (s *Sealer) Record(kind byte, content string) []byte {
	nonce := bytes.Clone(s.iv)
	low := nonce[4:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)^s.Next)
	s.Next++
	head := binary.BigEndian.AppendUint16([]byte{Data, 3, 3}, uint16(len(content)+1+s.aead.Overhead()))
	return s.aead.Seal(head, nonce, append([]byte(content), kind), head)
}
