package acme

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// Limits of the requests to an authority.
const (
	// maxOrders bounds concurrent orders, so that a first start with many names does not run into the
	// authority's limits.
	maxOrders = 4
	// orderTimeout bounds one order, including the checks of the name.
	orderTimeout = 5 * time.Minute
	// stagingSkip: after this many consecutive failures, and each multiple of it, an order does not try
	// the staging directory first.
	stagingSkip = 8
	// requestTimeout bounds each request of an order.
	requestTimeout = 30 * time.Second
)

// issuer orders certificates. Safe for concurrent use.
type issuer struct {
	settings   *Settings
	storage    certmagic.Storage
	challenges *challenges
	dns        *dnsSolver // nil = no records are set
	client     *http.Client
	log        *slog.Logger
	ended      context.Context // ends all orders
	slots      chan struct{}   // maxOrders
	domains    *domains

	mu    sync.Mutex
	types map[string]bool // the challenges that the gateway can answer now
}

var (
	_ certmagic.Issuer            = (*issuer)(nil)
	_ certmagic.RenewalInfoGetter = (*issuer)(nil)
)

// newIssuer returns an issuer whose orders end with ended.
func newIssuer(ended context.Context, s *Settings, storage certmagic.Storage, d *domains, log *slog.Logger) (*issuer, error) {
	roots, err := rootsOf(s.CA)
	if err != nil {
		return nil, fmt.Errorf("acme: ca: %w", err)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: requestTimeout}).DialContext, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, IdleConnTimeout: 10 * time.Second,
	}
	i := &issuer{
		settings: s, storage: storage, challenges: newChallenges(storage), log: log, ended: ended, domains: d,
		client: &http.Client{Transport: transport, Timeout: requestTimeout}, slots: make(chan struct{}, maxOrders),
	}
	if s.DNS != nil {
		i.dns = newDNSSolver(s.DNS, log)
	}
	return i, nil
}

// directoryKey is the name of a directory in the storage.
func directoryKey(directory string) string {
	u, err := url.Parse(directory)
	if err != nil {
		return certmagic.StorageKeys.Safe(directory)
	}
	return certmagic.StorageKeys.Safe(u.Host + strings.ReplaceAll(u.Path, "/", "-"))
}

// IssuerKey implements certmagic.Issuer.
func (i *issuer) IssuerKey() string { return directoryKey(i.settings.Directory) }

// answers sets the challenges that the gateway can answer from now on.
func (i *issuer) answers(types map[string]bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.types = types
}

// clientOf returns a client of a directory.
func (i *issuer) clientOf(directory string) *acmez.Client {
	client := &acmez.Client{
		Client: &acme.Client{
			Directory: directory, HTTPClient: i.client, UserAgent: "headpond", PollTimeout: orderTimeout,
			Logger: slog.New(slog.DiscardHandler), // its errors have the same content
		},
		ChallengeSolvers: map[string]acmez.Solver{},
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for kind := range i.types {
		client.ChallengeSolvers[kind] = solver{i.challenges}
		if kind == typeDNS {
			client.ChallengeSolvers[kind] = i.dns
		}
	}
	return client
}

// bounded returns a context that also ends with the issuer.
func (i *issuer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	unhook := context.AfterFunc(i.ended, cancel)
	return ctx, func() { unhook(); cancel() }
}

// orderError is the error of an order. It has been logged.
type orderError struct{ error }

func (e orderError) Unwrap() error { return e.error }

// Issue implements certmagic.Issuer. csr is for one name.
func (i *issuer) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if len(csr.DNSNames) != 1 {
		return nil, certmagic.ErrNoRetry{Err: fmt.Errorf("a certificate for %d names", len(csr.DNSNames))}
	}
	name := csr.DNSNames[0]
	before, ok := i.domains.begin(name)
	if !ok {
		return nil, certmagic.ErrNoRetry{Err: fmt.Errorf("no listener has the name %s any more", name)}
	}
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-i.ended.Done():
		return nil, certmagic.ErrNoRetry{Err: i.ended.Err()}
	}
	bounded, cancel := i.bounded(ctx)
	defer cancel()
	cert, err := i.order(bounded, csr, before)
	if ended := cmp.Or(ctx.Err(), i.ended.Err()); err != nil && ended != nil {
		return nil, certmagic.ErrNoRetry{Err: ended} // the name is no longer wanted
	}
	i.domains.end(name, err)
	if err != nil {
		i.log.Error("acme: no certificate was obtained; it is tried again later", "name", name, "error", err, "hint", i.hintOf(err))
		return nil, orderError{err}
	}
	i.log.Info("acme: certificate obtained", "name", name, "directory", i.settings.Directory)
	return &certmagic.IssuedCertificate{Certificate: cert.ChainPEM, Metadata: cert}, nil
}

// order orders a certificate. After failures it tries the staging directory first, whose limits are
// high: authorities count failed checks of a name, and refuse the name for a while. A failure there
// ends the order only if it concerns the name; other failures may be the staging directory's own.
func (i *issuer) order(ctx context.Context, csr *x509.CertificateRequest, failures int) (acme.Certificate, error) {
	if i.settings.Staging != "" && failures%stagingSkip != 0 {
		bounded, cancel := context.WithTimeout(ctx, orderTimeout/2) // leaves time for the authority itself
		_, err := i.orderAt(bounded, i.settings.Staging, csr)
		cancel()
		switch {
		case err == nil:
		case ctx.Err() != nil || ofName(err):
			return acme.Certificate{}, err
		default:
			i.log.Warn("acme: the staging directory gave no certificate; the authority itself is asked", "names", csr.DNSNames, "error", err)
		}
	}
	return i.orderAt(ctx, i.settings.Directory, csr)
}

// ofName reports whether an authority refused an order because of the name or the check of the name.
func ofName(err error) bool {
	var problem acme.Problem
	if !errors.As(err, &problem) {
		return false
	}
	switch problem.Type {
	case acme.ProblemTypeConnection, acme.ProblemTypeDNS, acme.ProblemTypeTLS, acme.ProblemTypeUnauthorized, acme.ProblemTypeIncorrectResponse,
		acme.ProblemTypeRejectedIdentifier, acme.ProblemTypeCAA, acme.ProblemTypeUnsupportedIdentifier:
		return true
	}
	return false
}

func (i *issuer) orderAt(ctx context.Context, directory string, csr *x509.CertificateRequest) (cert acme.Certificate, err error) {
	client := i.clientOf(directory)
	for range 2 {
		cert, err = i.orderOnce(ctx, client, csr)
		var problem acme.Problem
		if !errors.As(err, &problem) || problem.Type != acme.ProblemTypeAccountDoesNotExist {
			break
		}
		i.log.Warn("acme: the authority does not know the account; another one is made", "directory", directory)
		if err := i.forget(ctx, directory); err != nil {
			return cert, fmt.Errorf("storage: %w", err)
		}
	}
	if err != nil {
		return cert, fmt.Errorf("%s: %w", directory, err)
	}
	return cert, nil
}

func (i *issuer) orderOnce(ctx context.Context, client *acmez.Client, csr *x509.CertificateRequest) (acme.Certificate, error) {
	account, err := i.account(ctx, client.Client)
	if err != nil {
		return acme.Certificate{}, err
	}
	parameters, err := acmez.OrderParametersFromCSR(account, csr)
	if err != nil {
		return acme.Certificate{}, err
	}
	chains, err := client.ObtainCertificate(ctx, parameters)
	if err != nil {
		return acme.Certificate{}, err
	}
	if len(chains) == 0 {
		return acme.Certificate{}, errors.New("the authority gave no certificate")
	}
	return chains[0], nil
}

// GetRenewalInfo implements certmagic.RenewalInfoGetter. It returns when the authority wants a
// certificate to be renewed.
func (i *issuer) GetRenewalInfo(ctx context.Context, cert certmagic.Certificate) (acme.RenewalInfo, error) {
	ctx, cancel := i.bounded(ctx)
	defer cancel()
	return i.clientOf(i.settings.Directory).GetRenewalInfo(ctx, cert.Leaf)
}

// hintOf returns a hint on how to fix an error.
func (i *issuer) hintOf(err error) string {
	var problem acme.Problem
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, new(recordError)):
		return "look at \"dns\" under \"acme\", and at the log of the name server or program there"
	case errors.As(err, &unknown):
		return "the directory's own certificate is of an unknown authority: set \"ca\" under \"acme\""
	case errors.As(err, new(*net.OpError)), errors.As(err, new(*net.DNSError)), errors.Is(err, context.DeadlineExceeded):
		return "is \"directory\" under \"acme\" right, and does this machine reach it?"
	case !errors.As(err, &problem):
		return "see docs/acme.md"
	}
	switch problem.Type {
	case acme.ProblemTypeConnection, acme.ProblemTypeDNS, acme.ProblemTypeTLS, acme.ProblemTypeUnauthorized, acme.ProblemTypeIncorrectResponse:
		if i.dns != nil {
			return "the authority must see the record _acme-challenge.NAME: do all servers of the zone get it?"
		}
		return "the authority must reach this gateway under the name: at port 80 an http listener, or at port 443 the listener with \"acme\""
	case acme.ProblemTypeRateLimited:
		return "the authority's limits are used up: wait, and try a new configuration with its staging directory first"
	case acme.ProblemTypeRejectedIdentifier, acme.ProblemTypeCAA, acme.ProblemTypeUnsupportedIdentifier:
		return "the authority gives no certificate for this name: is it misspelt, and does a CAA record exclude the authority?"
	case acme.ProblemTypeExternalAccountRequired:
		return "this authority gives certificates to its customers only, whose key is missing: set \"eab\" under \"acme\""
	}
	return "see docs/acme.md"
}
