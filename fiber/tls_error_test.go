package fiber_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// sealer makes a client's records (RFC 8446, section 5.2), for what crypto/tls does not send.
type sealer struct {
	aead cipher.AEAD
	iv   []byte
	next uint64
}

// newSealer takes the secret from a key log of a connection with TLS_AES_128_GCM_SHA256.
func newSealer(t *testing.T, keyLog string) *sealer {
	t.Helper()
	_, line, _ := strings.Cut(keyLog, "CLIENT_TRAFFIC_SECRET_0 ")
	secret, err := hex.DecodeString(strings.Fields(line)[1])
	if err != nil {
		t.Fatal(err)
	}
	expand := func(label string, n int) []byte {
		label = "tls13 " + label
		info := string([]byte{0, byte(n), byte(len(label))}) + label + "\x00"
		b, err := hkdf.Expand(sha256.New, secret, info, n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	block, err := aes.NewCipher(expand("key", 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return &sealer{aead: aead, iv: expand("iv", 12)}
}

func (s *sealer) record(kind byte, content string) []byte {
	nonce := bytes.Clone(s.iv)
	low := nonce[4:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)^s.next)
	s.next++
	head := binary.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(content)+1+s.aead.Overhead()))
	return s.aead.Seal(head, nonce, append([]byte(content), kind), head)
}

// crypto/tls tells of some errors once, without a word at the next Read. Looking ahead must not lose them.
func TestTLSBufferedKeepsErrors(t *testing.T) {
	const data, handshake = 23, 22
	const ticket = "\x04\x00\x00\x0f" + "\x00\x00\x00\x01" + "\x00\x00\x00\x00" + "\x01n" + "\x00\x01t" + "\x00\x00" // which only servers send
	cfg := serverConfig(t)
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, more := range []string{"", "y"} {
			c, s := pair(t, e, "tcp")
			defer c.Close()
			server := fiber.TLSServer(s, cfg)
			shaken := make(chan error, 1)
			fiber.Spawn(s, func() { shaken <- server.Handshake() })
			var keyLog strings.Builder
			client := tls.Client(c, &tls.Config{InsecureSkipVerify: true, KeyLogWriter: &keyLog})
			if err := errors.Join(client.Handshake(), <-shaken); err != nil {
				t.Fatal(err)
			}
			if client.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
				return // a machine without instructions for it
			}
			seal := newSealer(t, keyLog.String())
			sent := seal.record(data, "x")
			if more != "" {
				sent = append(sent, seal.record(data, more)...)
			}
			sent = append(sent, seal.record(handshake, ticket)...)
			if _, err := c.Write(sent); err != nil {
				t.Fatal(err)
			}
			on(s, func() { readToError(t, server, "x"+more) })
		}
	})
}

// readToError expects data, byte by byte, and then the error behind it, which is that of no deadline.
func readToError(t *testing.T, c *fiber.TLSConn, want string) {
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
	for range want[1:] {
		if !c.Buffered() {
			t.Errorf("%q: nothing is buffered", want)
		}
		if n, err := c.Read(make([]byte, 10)); n != 1 || err != nil {
			t.Errorf("%q: Read = %d, %v", want, n, err)
		}
	}
	if !c.Buffered() {
		t.Errorf("%q: an error has been received, and Buffered says no", want)
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
	if _, err := c.Read(make([]byte, 10)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		t.Errorf("%q: Read = %v, want the error of what was received", want, err)
	}
}
