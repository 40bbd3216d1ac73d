package tcppool

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/idleconn"
)

// look says what can be read from c, without waiting for it or taking it.
func look(c net.Conn) idleconn.State { return idleconn.New(c).Look() }

// secure does the handshake on c, which it closes on an error.
func secure(ctx context.Context, c net.Conn, cfg *tls.Config) (net.Conn, error) {
	tc := fiber.TLSClient(c, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return tc, nil
}
