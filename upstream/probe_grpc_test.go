package upstream_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/upstream"
)

// grpcServer answers as gRPC servers do, by HTTP/2 frames that package net/http makes. It answers a question about a
// service with its status; the request is checked byte by byte.
func grpcServer(t *testing.T, cfg *tls.Config, answer func(w http.ResponseWriter, service string)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Protocols: new(http.Protocols), TLSConfig: cfg, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		h := r.Header
		if err != nil || len(body) < 5 || int(body[4]) != len(body)-5 || r.Method != http.MethodPost || r.ProtoMajor != 2 ||
			r.URL.Path != "/grpc.health.v1.Health/Check" || h.Get("Content-Type") != "application/grpc" || h.Get("Te") != "trailers" || h.Get("Grpc-Timeout") == "" {
			t.Errorf("%v %s %s %v %q, %v", r.Proto, r.Method, r.URL, h, body, err)
			return
		}
		service := ""
		if message := body[5:]; len(message) > 0 {
			if message[0] != 10 || int(message[1]) != len(message)-2 {
				t.Errorf("the request is %q", message)
			}
			service = string(message[2:])
		}
		answer(w, service)
	})}
	over := make(chan struct{})
	go func() {
		defer close(over)
		if cfg != nil {
			s.Protocols.SetHTTP2(true)
			_ = s.ServeTLS(l, "", "")
			return
		}
		s.Protocols.SetUnencryptedHTTP2(true)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { _ = s.Close(); <-over })
	return l.Addr().String()
}

// says answers with a message and a status.
func says(message, status string) func(http.ResponseWriter, string) {
	return func(w http.ResponseWriter, _ string) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		_, _ = io.WriteString(w, message)
		w.Header().Set("Grpc-Status", status)
		w.Header().Set("Grpc-Message", "because")
	}
}

func TestGRPCProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, c := range []struct {
		message, status string
		want            string // in the error; empty: healthy
	}{
		{"\x00\x00\x00\x00\x02\x08\x01", "0", ""},
		{"\x00\x00\x00\x00\x02\x08\x02", "0", "NOT_SERVING, want SERVING"},
		{"\x00\x00\x00\x00\x00", "0", "UNKNOWN, want SERVING"},
		{"\x00\x00\x00\x00\x02\x08\x09", "0", "serving status 9"},
		{"", "5", "knows no such service"},
		{"", "12", "has no health service"},
		{"", "14", "grpc-status 14: because"},
		{"", "", "not one of the gRPC"},
		{"\x00\x00\x00\x00\x02\x08", "0", "not one of the gRPC"},
		{"\x01\x00\x00\x00\x02\x08\x01", "0", "not one of the gRPC"},
		{"\x00\x00\x00\x00\x02\x12\x01", "0", "not one of the gRPC"},
	} {
		err := upstream.GRPCCheck{}.Probe()(ctx, grpcServer(t, nil, says(c.message, c.status)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q %s: %v, want %q", c.message, c.status, err, c.want)
		}
	}
	asked := ""
	address := grpcServer(t, nil, func(w http.ResponseWriter, service string) {
		asked = service
		w.Header().Set("Grpc-Status", "5") // without a message: in the header
	})
	if err := (upstream.GRPCCheck{Service: "shop.Cart"}).Probe()(ctx, address); err == nil || !strings.Contains(err.Error(), "no such service") || asked != "shop.Cart" {
		t.Errorf("asked about %q: %v", asked, err)
	}
}

// TestGRPCProbeTLS checks the name, and that the server speaks HTTP/2.
func TestGRPCProbeTLS(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	server, client := certs.New().Configs()
	address := grpcServer(t, server, says("\x00\x00\x00\x00\x02\x08\x01", "0"))
	settings := func() (*tls.Config, error) { return client, nil }
	if err := (upstream.GRPCCheck{TLS: settings}).Probe()(ctx, address); err != nil {
		t.Error(err)
	}
	client = client.Clone()
	client.ServerName = "elsewhere.test"
	if err := (upstream.GRPCCheck{TLS: settings}).Probe()(ctx, address); err == nil || !strings.Contains(err.Error(), "elsewhere.test") {
		t.Errorf("another name: %v", err)
	}
	if err := (upstream.GRPCCheck{}).Probe()(ctx, address); err == nil {
		t.Error("in clear text it succeeds")
	}
}
