package pgproxy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// attributeSET and attribute are a distinguished name as it is in a certificate.
type attributeSET []attribute

type attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// named makes a client certificate with a subject; each attribute is kind, tag, value, and "+" puts it into the set before.
func named(t *testing.T, by *certs.Authority, subject [][3]any) tls.Certificate {
	t.Helper()
	var parts []attributeSET
	for _, a := range subject {
		kind, more := strings.CutPrefix(a[0].(string), "+")
		var oid asn1.ObjectIdentifier
		for field := range strings.SplitSeq(kind, ".") {
			var n int
			if _, err := fmt.Sscan(field, &n); err != nil {
				t.Fatal(err)
			}
			oid = append(oid, n)
		}
		one := attribute{oid, asn1.RawValue{Tag: a[1].(int), Bytes: []byte(a[2].(string))}}
		if more {
			parts[len(parts)-1] = append(parts[len(parts)-1], one)
		} else {
			parts = append(parts, attributeSET{one})
		}
	}
	raw, err := asn1.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	key := keyOf(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		RawSubject: raw, SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate.Leaf, key.Public(), by.Certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: keyOf(x509.ParseCertificate(der))}
}

// TestNamesInClientCertificates asks a PostgreSQL server for the names in certificates.
func TestNamesInClientCertificates(t *testing.T) {
	const (
		cn, utf8, printable, ia5, latin, bmp = "2.5.4.3", asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String, asn1.TagT61String, asn1.TagBMPString
	)
	authority := certs.New()
	subjects := [][][3]any{
		{{cn, utf8, "ada"}},
		{{"2.5.4.6", printable, "CH"}, {"2.5.4.10", utf8, `O, "x"+y`}, {cn, utf8, "Ada Lovelace"}},
		{{cn, utf8, "first"}, {cn, utf8, "second"}, {"2.5.4.11", utf8, "last"}},
		{{cn, utf8, " lead # and trail "}, {"2.5.4.11", utf8, "#hash"}, {"2.5.4.11", utf8, `<a>;b\c=d/e`}},
		{{"0.9.2342.19200300.100.1.25", ia5, "org"}, {"0.9.2342.19200300.100.1.25", ia5, "example"}, {"0.9.2342.19200300.100.1.1", utf8, "u1"}, {"1.2.840.113549.1.9.1", ia5, "a@b.example"}, {cn, utf8, "x"}},
		{{cn, utf8, "Zoë Ж"}, {"2.5.4.10", latin, "Zo\xeb"}, {"2.5.4.11", bmp, "\x00Z\x04\x16"}},
		{{"2.5.4.10", utf8, "o"}, {cn, utf8, "multi"}, {"+2.5.4.11", utf8, "valued"}},
		{{"1.2.3.4.5", utf8, "unknown"}, {cn, utf8, "y"}},
		{{"2.5.4.5", printable, "12"}, {"2.5.4.12", utf8, "Dr"}, {"2.5.4.4", utf8, "sur"}, {"2.5.4.42", utf8, "given"}, {"2.5.4.9", utf8, "street 1"}, {"2.5.4.17", utf8, "8000"}, {"2.5.4.13", utf8, "text"}, {"2.5.4.46", printable, "q"}, {"2.5.4.65", utf8, "nym"}, {"2.5.4.43", utf8, "i"}, {"2.5.4.41", utf8, "n"}, {"2.5.4.97", utf8, "VAT"}, {"2.5.4.7", utf8, "l"}, {"2.5.4.8", utf8, "st"}, {cn, utf8, "all"}},
		{{cn, utf8, "tab\tend\x7f"}},
	}
	var ident strings.Builder
	clients := make([]tls.Certificate, len(subjects))
	for i, subject := range subjects {
		clients[i] = named(t, authority, subject)
		for kind, dn := range map[string]bool{"cn": false, "dn": true} {
			name, err := pgproxy.NameIn(clients[i].Leaf, dn)
			if err != nil {
				t.Errorf("%v: %v", subject, err)
			}
			fmt.Fprintf(&ident, "%s \"%s\" u%d\n", kind, strings.ReplaceAll(name, `"`, `""`), i)
		}
	}
	db := pgtest.Start(t, pgtest.WithTLS(), pgtest.WithHBA("hostssl cn all all cert map=cn", "hostssl dn all all cert map=dn clientname=DN"))
	ca, _ := certs.PEM(authority.Certificate)
	for name, text := range map[string]string{"ca.crt": string(ca), "pg_ident.conf": ident.String()} {
		if err := os.WriteFile(filepath.Join(db.SocketDir(), name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	db.Exec(t, "alter system set ssl_ca_file = 'ca.crt'")
	db.Restart(t)
	for i, subject := range subjects {
		for _, kind := range []string{"cn", "dn"} {
			cfg, err := pgx.ParseConfig(db.DSN(fmt.Sprint("u", i), "", kind))
			if err != nil {
				t.Fatal(err)
			}
			cfg.TLSConfig = &tls.Config{InsecureSkipVerify: true, Certificates: clients[i : i+1]}
			_, err = pgx.ConnectConfig(t.Context(), cfg)
			if said, ok := errors.AsType[*pgconn.PgError](err); !ok || !has(said.Message, "does not exist") { // the role; the certificate is its own
				t.Errorf("%s of %q: PostgreSQL finds another name than\n%s%v", kind, subject, ident.String(), err)
			}
		}
	}
	for _, bad := range [][][3]any{{{"2.5.4.10", utf8, "no user"}}, {{cn, utf8, "ada\x00.example"}}, {{cn, utf8, ""}}} {
		if name, err := pgproxy.NameIn(named(t, authority, bad).Leaf, false); err == nil {
			t.Errorf("%q: the name is %q", bad, name)
		}
	}
}
