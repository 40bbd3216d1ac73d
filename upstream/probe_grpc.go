package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
)

// GRPCCheck is a health check by the gRPC health checking protocol, grpc.health.v1, over HTTP/2, on a new connection.
// The zero value checks the server as a whole, without TLS.
type GRPCCheck struct {
	// Service is the name of the service to check; "" = the server as a whole.
	Service string
	// Host and Dial are as in an HTTPCheck.
	Host string
	Dial DialFunc
	// TLS returns the TLS settings, as in an HTTPCheck; nil = no TLS.
	TLS func() (*tls.Config, error)
}

// Probe returns the check as a Probe.
func (g GRPCCheck) Probe() Probe {
	if g.Dial == nil {
		g.Dial = netaddr.Dial
	}
	return func(ctx context.Context, endpoint string) error {
		if err := g.run(ctx, endpoint); err != nil {
			return fmt.Errorf("health probe gRPC %q: %w", g.Service, err)
		}
		return nil
	}
}

// run does one check.
func (g *GRPCCheck) run(ctx context.Context, endpoint string) error {
	host, err := probedHost(endpoint, g.Host)
	if err != nil {
		return err
	}
	u := &url.URL{Scheme: "http", Host: host, Path: "/grpc.health.v1.Health/Check"}
	t := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return g.Dial(ctx, endpoint) },
		Protocols:              new(http.Protocols),
		MaxResponseHeaderBytes: probeHeaderBytes,
	}
	defer t.CloseIdleConnections()
	if g.TLS == nil {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		cfg, err := g.TLS()
		if err != nil {
			return err
		}
		name := endpoint
		if g.Host != "" {
			name = host
		}
		u.Scheme = "https"
		t.TLSClientConfig = tlsclient.For(cfg, name)
		t.Protocols.SetHTTP2(true)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(grpcRequest(g.Service)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", "headpond-health-probe")
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set("Grpc-Timeout", fmt.Sprintf("%dm", max(time.Until(deadline).Milliseconds(), 1)))
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return grpcVerdict(resp)
}

// grpcRequest returns a HealthCheckRequest in its frame: uncompressed, with its length, and field 1, the service, if
// there is one.
func grpcRequest(service string) []byte {
	var message []byte
	if service != "" {
		message = binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(service)))
		message = append(message, service...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// grpcStates are the values of HealthCheckResponse.ServingStatus.
var grpcStates = []string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}

// errNoGRPC is the error for an answer that is not gRPC.
var errNoGRPC = errors.New("the answer is not one of the gRPC health checking protocol")

// grpcVerdict judges the answer. The status of the call is in the trailer or, without a message, in the header.
func grpcVerdict(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: status %s", errNoGRPC, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, probeBodyBytes))
	if err != nil {
		return err
	}
	code, message := resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
	if code == "" {
		code, message = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	}
	switch code {
	case "0":
	case "5":
		return errors.New("the server knows no such service (NOT_FOUND)")
	case "12":
		return errors.New("the server has no health service (UNIMPLEMENTED)")
	case "":
		return errNoGRPC
	default:
		return fmt.Errorf("grpc-status %.20s: %.200s", code, message)
	}
	state, ok := grpcState(body)
	switch {
	case !ok:
		return errNoGRPC
	case state == 1:
		return nil
	case state < uint64(len(grpcStates)):
		return fmt.Errorf("%s, want SERVING", grpcStates[state])
	}
	return fmt.Errorf("serving status %d, want 1 (SERVING)", state)
}

// grpcState returns field 1 of the HealthCheckResponse, 0 if it is missing.
func grpcState(frame []byte) (state uint64, ok bool) {
	if len(frame) < 5 || frame[0] != 0 || uint64(binary.BigEndian.Uint32(frame[1:])) != uint64(len(frame)-5) {
		return 0, false
	}
	message := frame[5:]
	if len(message) == 0 {
		return 0, true
	}
	state, n := binary.Uvarint(message[1:])
	return state, message[0] == 1<<3 && n > 0
}
