package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
)

const (
	// renewCheck is how often the manager looks for certificates to renew.
	renewCheck = 10 * time.Minute
	// refreshEvery is the least time between two looks for renewed certificates.
	refreshEvery = time.Minute
	// maxRetry is the longest time between two attempts to obtain a certificate.
	maxRetry = 6 * time.Hour
)

// retryUnit is the time between the first attempts to obtain a certificate.
var retryUnit = time.Minute

// manager obtains, keeps and renews the certificates of one gateway.
type manager struct {
	settings *Settings
	issuer   *issuer
	domains  *domains
	cache    *certmagic.Cache
	config   *certmagic.Config
	storage  *storage
	log      *slog.Logger
	every    time.Duration
	ctx      context.Context // until close
	stop     context.CancelFunc
	closing  sync.Once
	work     sync.WaitGroup

	caching sync.Mutex // held while shown is updated; files may be read meanwhile
	mu      sync.Mutex // never held while anything is waited for
	shown   map[string]*certmagic.Certificate
}

// newManager prepares the storage. It sends nothing to the authority. every is renewCheck, except in
// tests.
func newManager(s *Settings, every time.Duration, log *slog.Logger) (*manager, error) {
	if err := prepareStorage(s.Storage); err != nil {
		return nil, fmt.Errorf("acme: storage: %w", err)
	}
	m := &manager{
		settings: s, domains: &domains{want: map[string]*domain{}}, storage: newStorage(s.Storage), log: log, every: every,
		shown: map[string]*certmagic.Certificate{},
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	var err error
	if m.issuer, err = newIssuer(m.ctx, s, m.storage, m.domains, log); err != nil {
		m.stop()
		return nil, err
	}
	zap := newZap(log)
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.config, nil }, RenewCheckInterval: every, Logger: zap,
	})
	m.config = certmagic.New(m.cache, certmagic.Config{
		Storage: m.storage, Issuers: []certmagic.Issuer{m.issuer}, KeySource: certmagic.StandardKeyGenerator{KeyType: keyTypes[s.KeyType]}, Logger: zap,
		// Unless the authority names a time, a renewal comes when a third of the lifetime is left, slightly
		// varied for each gateway: many gateways that started at once do not renew at once.
		RenewalWindowRatio: certmagic.DefaultRenewalWindowRatio * (0.9 + 0.1*rand.Float64()), //nolint:gosec // no secret
		OCSP:               certmagic.OCSPConfig{DisableStapling: true},                      // authorities drop OCSP, and it would connect to hosts that a certificate names
	})
	m.work.Go(m.refreshAll)
	return m, nil
}

// prepareStorage makes the folder, which only the gateway's user may read, and checks that it can be
// written.
func prepareStorage(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	probe, err := os.CreateTemp(folder, ".probe-*")
	if err != nil {
		return fmt.Errorf("the gateway's user cannot write there: %w", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// load loads existing certificates from the storage, so that listeners have them for their first
// clients. undo unloads them.
func (m *manager) load(names map[string]bool) (undo func()) {
	var loaded []string
	for name := range names {
		if m.domains.has(name) {
			continue
		}
		if m.cacheStored(name) == nil { // keep reports errors
			loaded = append(loaded, name)
		}
	}
	return func() { m.drop(loaded) }
}

// manage sets the names for which certificates are obtained and renewed. It does not wait, and does
// not affect names that stay. types are the challenges that the gateway can answer.
func (m *manager) manage(names, types map[string]bool) {
	m.issuer.answers(types)
	added, removed := m.domains.set(m.ctx, names)
	if len(removed) > 0 {
		m.work.Go(func() { m.drop(removed) })
	}
	for name, ctx := range added {
		m.work.Go(func() { m.keep(ctx, name) })
	}
	if len(added) > 0 { // certificates from the storage may have expired
		m.work.Go(func() { _ = m.cache.RenewManagedCertificates(m.ctx) })
	}
}

// keep tries until there is a certificate for a name, or until ctx ends. After that certmagic renews
// it.
func (m *manager) keep(ctx context.Context, name string) {
	for wait := range retries {
		err := m.obtain(ctx, name)
		if ctx.Err() != nil { // it may have been cached after drop
			m.drop([]string{name})
			return
		}
		if err == nil {
			m.domains.clearError(name)
			return
		}
		if !errors.As(err, new(orderError)) { // orders log their own errors
			m.domains.end(name, err)
			m.log.Error("acme: no certificate was obtained; it is tried again later", "name", name, "error", err, "hint", "look at the folder \"storage\" under \"acme\"")
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// retries yields the times between attempts, endlessly.
func retries(yield func(time.Duration) bool) {
	for i, units := 0, 0; ; i++ {
		if first := [...]int{1, 2, 2, 5, 10}; i < len(first) {
			units = first[i]
		} else {
			units = min(2*units, int(maxRetry/time.Minute))
		}
		if !yield(time.Duration(units) * retryUnit) {
			return
		}
	}
}

// obtain takes a certificate from the storage, or orders one, once.
func (m *manager) obtain(ctx context.Context, name string) error {
	m.caching.Lock()
	there := m.best(name) != nil
	m.caching.Unlock()
	if there {
		return nil
	}
	err := m.cacheStored(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = m.config.ObtainCertSync(ctx, name); err != nil {
			return fmt.Errorf("storage: %w", err)
		}
		err = m.cacheStored(name)
	}
	if err != nil {
		return fmt.Errorf("storage: the stored certificate cannot be used: %w; if that stays so, remove its files to obtain another one", err)
	}
	return nil
}

// cacheStored loads the certificate for a name from the storage.
func (m *manager) cacheStored(name string) error {
	m.caching.Lock()
	defer m.caching.Unlock()
	if _, err := m.config.CacheManagedCertificate(m.ctx, name); err != nil {
		return err
	}
	m.refresh(name)
	return nil
}

// drop unloads the certificates for names that are no longer wanted.
func (m *manager) drop(names []string) {
	m.caching.Lock()
	defer m.caching.Unlock()
	for _, name := range names {
		if !m.domains.has(name) {
			m.cache.RemoveManaged([]certmagic.SubjectIssuer{{Subject: name}})
			m.refresh(name)
		}
	}
}

// best returns the certificate for a name that expires last, nil if there is none. One for a wildcard is not for the names that it
// matches.
func (m *manager) best(name string) (best *certmagic.Certificate) {
	all := m.cache.AllMatchingCertificates(name)
	for i := range all {
		if c := &all[i]; c.Leaf != nil && slices.Contains(c.Names, name) && (best == nil || c.Leaf.NotAfter.After(best.Leaf.NotAfter)) {
			best = c
		}
	}
	return best
}

// refresh updates the certificate that is served for a name. caching is held.
func (m *manager) refresh(name string) {
	best := m.best(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if best == nil {
		delete(m.shown, name)
		return
	}
	m.shown[name] = best
}

// refreshAll looks for renewed certificates, until close. Handshakes do not ask certmagic: they would
// wait while it reads files.
func (m *manager) refreshAll() {
	ticks := time.NewTicker(min(m.every, refreshEvery))
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-m.ctx.Done():
			return
		}
		for _, d := range m.domains.all() {
			m.caching.Lock()
			m.refresh(d.name)
			m.caching.Unlock()
		}
	}
}

// certificate returns the certificate for a name, nil if there is none, or none that the client
// supports. It does not wait.
func (m *manager) certificate(name string, hello *tls.ClientHelloInfo) *tls.Certificate {
	if !m.domains.has(name) {
		return nil
	}
	m.mu.Lock()
	shown := m.shown[name]
	m.mu.Unlock()
	if shown == nil || hello != nil && hello.SupportsCertificate(&shown.Certificate) != nil {
		return nil
	}
	return &shown.Certificate
}

// expires returns when the certificate for a name expires, zero if there is none.
func (m *manager) expires(name string) time.Time {
	if c := m.certificate(name, nil); c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// challenge returns the TLS settings for a handshake by which the authority checks a name, nil for
// other handshakes.
func (m *manager) challenge(hello *tls.ClientHelloInfo) *tls.Config {
	if len(hello.SupportedProtos) != 1 || hello.SupportedProtos[0] != acmez.ACMETLS1Protocol || !m.domains.has(hello.ServerName) {
		return nil
	}
	return m.issuer.challenges.handshake(hello.ServerName)
}

// close ends orders and renewals, and waits for them. The certificates stay in the storage.
func (m *manager) close() {
	m.closing.Do(func() {
		m.stop()
		m.cache.Stop()
		m.work.Wait()
		m.storage.close()
		m.issuer.client.CloseIdleConnections()
	})
}
