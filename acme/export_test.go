package acme

import (
	"context"
	"crypto/x509"
	"log/slog"
	"testing"
	"time"
)

// Tests look for certificates to renew all the time.
func init() { checkEvery = 100 * time.Millisecond }

// OrderAfterFailure orders a certificate as after an order that has failed.
func OrderAfterFailure(ctx context.Context, s Settings, csr *x509.CertificateRequest) error {
	m, err := newManager(&s, renewCheck, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer m.close()
	m.issuer.answers(map[string]bool{typeHTTP: true})
	_, err = m.issuer.order(ctx, csr, 1)
	return err
}

// RetryAfter sets the time between the first attempts to obtain a certificate until the end of a test, of whose gateways there is none yet.
func RetryAfter(t *testing.T, d time.Duration) {
	before := retryUnit
	retryUnit = d
	t.Cleanup(func() { retryUnit = before })
}

// Retries returns the times between the first n attempts.
func Retries(n int) (all []time.Duration) {
	for d := range retries {
		if all = append(all, d); len(all) == n {
			break
		}
	}
	return all
}

// OfName is ofName.
func OfName(err error) bool { return ofName(err) }

// HintOf is hintOf.
func HintOf(err error) string { return (&issuer{}).hintOf(err) }

// SetDNSPort changes the port of name servers, and what names the machine's resolvers, until undo.
func SetDNSPort(port, resolv string) (undo func()) {
	oldPort, oldConf := dnsPort, resolvConf
	dnsPort, resolvConf = port, resolv
	return func() { dnsPort, resolvConf = oldPort, oldConf }
}

// RunCommand runs a program as "command" under "dns" does.
func RunCommand(ctx context.Context, args []string) error {
	return command(args).set(ctx, "a.test.", "value")
}
