package tcppool

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/headpond/headpond/fiber"
)

// secure does the handshake on c, which it closes on an error.
func secure(ctx context.Context, c net.Conn, cfg *tls.Config) (net.Conn, error) {
	tc := fiber.TLSClient(c, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return tc, nil
}
