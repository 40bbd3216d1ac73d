package crl_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/crl"
)

// authority is a certificate with its key.
type authority struct {
	*x509.Certificate
	key *ecdsa.PrivateKey
}

// issue makes a certificate, by itself if there is no issuer.
func issue(t *testing.T, by *authority, name string, serial int64, mayIssue bool) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: mayIssue, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if mayIssue {
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	}
	if by == nil {
		by = &authority{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{c, key}
}

// revoke makes a list, valid from an hour before until is, in DER.
func (a *authority) revoke(t *testing.T, until time.Duration, critical bool, serials ...int64) []byte {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(until - time.Hour), NextUpdate: time.Now().Add(until)}
	for _, serial := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(serial), RevocationTime: time.Now()})
	}
	if critical {
		list.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 28}, Critical: true, Value: []byte{0x30, 3, 0x81, 1, 0xff}}} // user certificates only
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.Certificate, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// inPEM makes blocks of PEM.
func inPEM(kind string, ders ...[]byte) (text []byte) {
	for _, der := range ders {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	return text
}

// TestVerify checks which clients of an authority below another one are refused.
func TestVerify(t *testing.T) {
	root, other := issue(t, nil, "root", 1, true), issue(t, nil, "root", 1, true)
	middle := issue(t, root, "middle", 2, true)
	good, bad := issue(t, middle, "good", 10, false), issue(t, middle, "bad", 11, false)
	direct := issue(t, root, "direct", 11, false) // the number of bad, of another authority
	trusted := inPEM("CERTIFICATE", root.Raw, middle.Raw)
	hour := time.Hour / 2
	of := func(lists ...[]byte) [][]byte { return lists }
	for what, c := range map[string]struct {
		client *authority
		lists  [][]byte
		want   error
	}{
		"not revoked":            {good, of(root.revoke(t, hour, false), middle.revoke(t, hour, false, 11)), nil},
		"revoked":                {bad, of(root.revoke(t, hour, false), middle.revoke(t, hour, false, 11)), crl.ErrRevoked},
		"number of another":      {direct, of(root.revoke(t, hour, false), middle.revoke(t, hour, false, 11)), nil},
		"its authority revoked":  {good, of(root.revoke(t, hour, false, 2), middle.revoke(t, hour, false)), crl.ErrRevoked},
		"no list":                {good, of(root.revoke(t, hour, false)), crl.ErrNoList},
		"expired":                {good, of(root.revoke(t, hour, false), middle.revoke(t, -hour, false)), crl.ErrOutdated},
		"expired and revoked":    {bad, of(root.revoke(t, hour, false), middle.revoke(t, -hour, false, 11)), crl.ErrRevoked},
		"of the future":          {good, of(root.revoke(t, hour, false), middle.revoke(t, 3*hour, false)), crl.ErrOutdated},
		"root's expired":         {good, of(root.revoke(t, -hour, false), middle.revoke(t, hour, false)), crl.ErrOutdated},
		"old, then new":          {bad, of(middle.revoke(t, -hour, false), middle.revoke(t, hour, false, 11)), crl.ErrRevoked},
		"new, then old":          {good, of(middle.revoke(t, hour, false), middle.revoke(t, -hour, false, 10)), nil},
		"only its own authority": {good, of(middle.revoke(t, hour, false)), nil},
	} {
		t.Run(what, func(t *testing.T) {
			lists, err := crl.Parse(inPEM("X509 CRL", c.lists...), trusted)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(trusted)
			chains, err := c.client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			if err != nil {
				t.Fatal(err)
			}
			if err := lists.Verify(chains, time.Now()); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if err := lists.Verify(nil, time.Now()); err == nil {
				t.Error("no chain is accepted")
			}
		})
	}
	for what, c := range map[string]struct {
		file []byte
		want string
	}{
		"in DER":       {middle.revoke(t, hour, false), ""},
		"no list":      {inPEM("CERTIFICATE", root.Raw), "there is no certificate revocation list"},
		"text":         {[]byte("revoked: 11"), "it is not a certificate revocation list in PEM or DER"},
		"empty":        {nil, "it is not a certificate revocation list"},
		"of a forger":  {other.revoke(t, hour, false), `the signature of the list of "CN=root" is not valid`},
		"of a client":  {issue(t, nil, "stranger", 1, true).revoke(t, hour, false), `a list of "CN=stranger", whose certificate is not among the authorities`},
		"partitioned":  {middle.revoke(t, hour, true), "only complete lists are supported"},
		"one of two":   {slices.Concat(inPEM("X509 CRL", middle.revoke(t, hour, false)), inPEM("X509 CRL", []byte{0x30})), "it is not a certificate revocation list"},
		"two in a row": {inPEM("X509 CRL", middle.revoke(t, hour, false), root.revoke(t, hour, false)), ""},
	} {
		if _, err := crl.Parse(c.file, trusted); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestChangedKey: an authority with a new key has a list of each key. The old one's does not concern the new one, nor its clients.
func TestChangedKey(t *testing.T) {
	before, after := issue(t, nil, "root", 1, true), issue(t, nil, "root", 1, true)
	trusted := inPEM("CERTIFICATE", before.Raw, after.Raw)
	lists, err := crl.Parse(inPEM("X509 CRL", before.revoke(t, -time.Minute, false, 1, 10), after.revoke(t, time.Hour/2, false, 11)), trusted)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	for what, c := range map[string]struct {
		client *authority
		want   error
	}{
		"new key":          {issue(t, after, "good", 10, false), nil},
		"new key, revoked": {issue(t, after, "bad", 11, false), crl.ErrRevoked},
		"old key":          {issue(t, before, "old", 12, false), crl.ErrOutdated},
	} {
		chains, err := c.client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			t.Fatal(err)
		}
		if err := lists.Verify(chains, time.Now()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}
