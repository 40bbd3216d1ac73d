package fiber_test

import (
	"crypto"
	"crypto/tls"
	"io"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// slowKey says that it signs, and waits for release.
type slowKey struct {
	crypto.Signer
	signs, release chan struct{}
}

func (k slowKey) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	close(k.signs)
	<-k.release
	return k.Signer.Sign(rand, digest, opts)
}

// While a key of TLSKey signs, the loop of the handshake runs other fibers.
func TestTLSKeySignsOffTheLoop(t *testing.T) {
	cfg := serverConfig()
	key := slowKey{cfg.Certificates[0].PrivateKey.(crypto.Signer), nil, nil} //nolint:forcetypeassert // as crypto/tls does
	engines(t, func(t *testing.T, e *fiber.Engine) {
		key.signs, key.release = make(chan struct{}), make(chan struct{})
		cfg := cfg.Clone()
		cfg.Certificates = []tls.Certificate{cfg.Certificates[0]}
		cfg.Certificates[0].PrivateKey = fiber.TLSKey(key)
		c, s := pair(t, e, "tcp")
		server := fiber.TLSServer(s, cfg)
		shaken := make(chan error, 1)
		fiber.Spawn(s, func() { shaken <- server.Handshake() })
		done := make(chan error, 1)
		fiber.Spawn(c, func() { done <- fiber.TLSClient(c, &tls.Config{InsecureSkipVerify: true}).Handshake() })
		<-key.signs
		on(s, func() { close(key.release) }) // the loop runs
		for _, end := range []chan error{shaken, done} {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
		on(s, func() { _ = server.Close() })
		on(c, func() { _ = c.Close() })
	})
}

// A handshake whose first message has arrived lets the other fibers of the loop run before it computes.
func TestTLSHandshakeBeginsLast(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		other, last := false, false // the loop's
		cfg := cfg.Clone()
		cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			last = other
			return nil, nil //nolint:nilnil // as documented there
		}
		c, s := pair(t, e, "tcp")
		go func() { _ = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
		shaken := make(chan error, 1)
		server := fiber.TLSServer(s, cfg)
		on(s, func() {
			_ = s.(fiber.Stream).WaitReadable()
			fiber.Spawn(s, func() { shaken <- server.Handshake() })
			fiber.Spawn(s, func() { other = true })
		})
		if err := <-shaken; err != nil || !last {
			t.Errorf("before the other fiber, %v", err)
		}
		on(s, func() { _ = server.Close() })
		on(c, func() { _ = c.Close() })
	})
}
