// Package crl checks client certificates against certificate revocation lists (RFC 5280, section 5).
package crl

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Lists are the revocation lists of some authorities. They are not changed once they are made, and may be used from any
// goroutine.
type Lists struct {
	byIssuer map[issuer]*list
	above    map[string][]*list // by an authority's certificate in DER: those of its issuer, for the end of a chain
	expires  time.Time
}

// issuer identifies an authority: one that has changed its key has two, with lists of their own.
type issuer struct{ name, key string }

func issuerOf(c *x509.Certificate) issuer {
	return issuer{string(c.RawSubject), string(c.RawSubjectPublicKeyInfo)}
}

// list is the newest list of an authority.
type list struct {
	issuer     string // for messages
	thisUpdate time.Time
	nextUpdate time.Time           // zero: the list does not say
	revoked    map[string]struct{} // serial numbers, as big-endian bytes
}

// Parse reads a file with lists, one in DER or any number in PEM, each signed by one of the authorities: certificates in
// PEM. Of several lists of one authority the newest counts. Lists that cover a part of an authority's certificates only
// (delta, indirect, partitioned) are errors.
func Parse(file, authorities []byte) (*Lists, error) {
	all, err := decode(file)
	if err != nil {
		return nil, err
	}
	signers, err := certificates(authorities)
	if err != nil {
		return nil, err
	}
	lists := &Lists{byIssuer: map[issuer]*list{}, above: map[string][]*list{}}
	for _, read := range all {
		i := slices.IndexFunc(signers, func(c *x509.Certificate) bool {
			return bytes.Equal(c.RawSubject, read.RawIssuer) && read.CheckSignatureFrom(c) == nil
		})
		switch {
		case i < 0:
			return nil, unsigned(read, signers)
		case partial(read):
			return nil, fmt.Errorf("the list of %q is for a part of its certificates only (a delta, indirect or partitioned list); only complete lists are supported", read.Issuer)
		}
		if old := lists.byIssuer[issuerOf(signers[i])]; old == nil || old.thisUpdate.Before(read.ThisUpdate) {
			lists.byIssuer[issuerOf(signers[i])] = newList(read)
		}
	}
	for _, c := range signers {
		for _, by := range signers {
			if l := lists.byIssuer[issuerOf(by)]; l != nil && mayHaveIssued(by, c) {
				lists.above[string(c.Raw)] = append(lists.above[string(c.Raw)], l)
			}
		}
	}
	for _, l := range lists.byIssuer {
		if !l.nextUpdate.IsZero() && (lists.expires.IsZero() || l.nextUpdate.Before(lists.expires)) {
			lists.expires = l.nextUpdate
		}
	}
	return lists, nil
}

// decode returns the lists of a file, at least one.
func decode(file []byte) (all []*x509.RevocationList, err error) {
	ders := [][]byte{file}
	if bytes.Contains(file, []byte("-----BEGIN ")) {
		ders = nil
		for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == "X509 CRL" {
				ders = append(ders, block.Bytes)
			}
		}
	}
	for _, der := range ders {
		read, err := x509.ParseRevocationList(der)
		if err != nil {
			return nil, fmt.Errorf("it is not a certificate revocation list in PEM or DER: %w", err)
		}
		all = append(all, read)
	}
	if len(all) == 0 {
		return nil, errors.New("there is no certificate revocation list (X509 CRL) in it")
	}
	return all, nil
}

// certificates returns those of a PEM file, as x509.CertPool does, which skips what it cannot read.
func certificates(file []byte) (all []*x509.Certificate, err error) {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there is no authority whose lists these could be")
	}
	return all, nil
}

// unsigned says why a list is signed by none of the authorities.
func unsigned(read *x509.RevocationList, signers []*x509.Certificate) error {
	for _, c := range signers {
		if bytes.Equal(c.RawSubject, read.RawIssuer) {
			return fmt.Errorf("the signature of the list of %q is not valid: %w", read.Issuer, read.CheckSignatureFrom(c))
		}
	}
	return fmt.Errorf("there is a list of %q, whose certificate is not among the authorities; add it to them", read.Issuer)
}

// mayHaveIssued reports whether a certificate is of an authority. The name alone does not say that: an authority that has changed
// its key has two certificates, and lists for each. A signature that is too weak to check counts.
func mayHaveIssued(by, c *x509.Certificate) bool {
	if !bytes.Equal(by.RawSubject, c.RawIssuer) {
		return false
	}
	err := c.CheckSignatureFrom(by)
	_, weak := errors.AsType[x509.InsecureAlgorithmError](err)
	return err == nil || weak
}

// partial reports whether a list has a critical extension: those that RFC 5280 defines narrow down what a list is about.
func partial(read *x509.RevocationList) bool {
	for _, e := range read.Extensions {
		if e.Critical {
			return true
		}
	}
	for i := range read.RevokedCertificateEntries {
		for _, e := range read.RevokedCertificateEntries[i].Extensions {
			if e.Critical {
				return true
			}
		}
	}
	return false
}

func newList(read *x509.RevocationList) *list {
	l := &list{issuer: read.Issuer.String(), thisUpdate: read.ThisUpdate, nextUpdate: read.NextUpdate, revoked: make(map[string]struct{}, len(read.RevokedCertificateEntries))}
	for i := range read.RevokedCertificateEntries {
		l.revoked[string(read.RevokedCertificateEntries[i].SerialNumber.Bytes())] = struct{}{}
	}
	return l
}

// Expires returns when the first of the lists expires, zero if none does.
func (l *Lists) Expires() time.Time { return l.expires }

// Errors of Verify.
var (
	ErrRevoked  = errors.New("the certificate is revoked")
	ErrOutdated = errors.New("certificate revocation list outdated")
	ErrNoList   = errors.New("no certificate revocation list")
)

// Verify returns nil if one of the verified chains of a client's certificate, of which the last certificate is the trusted
// one, has no revoked certificate in it, by lists that are valid now, and there are lists of the authorities of all but
// the last. The other chains are why there is an error.
func (l *Lists) Verify(chains [][]*x509.Certificate, now time.Time) (err error) {
	for _, chain := range chains {
		if why := l.verify(chain, now); why == nil {
			return nil
		} else if err == nil {
			err = why
		}
	}
	if err == nil {
		err = errors.New("the certificate has no verified chain")
	}
	return err
}

func (l *Lists) verify(chain []*x509.Certificate, now time.Time) error {
	last := len(chain) - 1
	for i, c := range chain[:last] {
		by := l.byIssuer[issuerOf(chain[i+1])]
		if by == nil {
			return fmt.Errorf("%w: there is none of %q, the authority of %q", ErrNoList, c.Issuer, c.Subject)
		}
		if err := by.verify(c, now); err != nil {
			return err
		}
	}
	for _, by := range l.above[string(chain[last].Raw)] {
		if err := by.verify(chain[last], now); err != nil {
			return err
		}
	}
	return nil
}

// verify checks one certificate of the list's authority.
func (l *list) verify(c *x509.Certificate, now time.Time) error {
	switch _, revoked := l.revoked[string(c.SerialNumber.Bytes())]; {
	case revoked:
		return fmt.Errorf("%w: %q, serial number %x, by the list of %q", ErrRevoked, c.Subject, c.SerialNumber, l.issuer)
	case !l.nextUpdate.IsZero() && now.After(l.nextUpdate):
		return fmt.Errorf("%w: that of %q expired at %s; put its new one into the file of client_crl, and reload", ErrOutdated, l.issuer, l.nextUpdate.Format(time.RFC3339))
	case now.Before(l.thisUpdate):
		return fmt.Errorf("%w: that of %q is of the future, %s", ErrOutdated, l.issuer, l.thisUpdate.Format(time.RFC3339))
	}
	return nil
}
