package pgwire_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// TestChannelBinding has a program between client and server change what the server offers, or end the client's TLS itself.
func TestChannelBinding(t *testing.T) {
	scram, plus := pgwire.MechanismSCRAM, pgwire.MechanismSCRAMPlus
	ours, theirs := bytes.Repeat([]byte{1}, sha512.Size), bytes.Repeat([]byte{2}, sha256.Size)
	for _, c := range []struct {
		what           string
		server, client []byte
		seen           []string
		password       string
		want           error
	}{
		{"both ends", ours, ours, []string{plus, scram}, "secret", nil},
		{"both ends, a wrong password", ours, ours, []string{plus, scram}, "wrong", pgwire.ErrAuth},
		{"a client without", ours, nil, []string{plus, scram}, "secret", nil},
		{"a server without", nil, ours, []string{scram}, "secret", nil},
		{"two connections", ours, theirs, []string{plus, scram}, "secret", pgwire.ErrChannelBinding},
		{"two connections, a wrong password", ours, theirs, []string{plus, scram}, "wrong", pgwire.ErrChannelBinding},
		{"a certificate that is the beginning of another", ours, ours[:sha256.Size], []string{plus, scram}, "secret", pgwire.ErrChannelBinding},
		{"the offer taken away", ours, ours, []string{scram}, "secret", pgwire.ErrChannelBinding},
		{"an offer out of nowhere", nil, ours, []string{plus, scram}, "secret", pgwire.ErrMalformed},
	} {
		v := verifierOf(t, "secret", "0123456789abcdef", 16)
		err := exchangeBy(pgwire.NewScramServer(v, c.server), pgwire.NewScramClient(c.password), c.seen, c.client)
		if c.want == nil && err != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
	if _, _, err := pgwire.NewScramClient("x").First([]string{plus, "OTHER"}, nil); err == nil {
		t.Error("a client without channel binding chooses a mechanism that has it")
	}
}

// Header and mechanism have to agree, in both messages.
func TestChannelBindingRefuses(t *testing.T) {
	scram, plus := pgwire.MechanismSCRAM, pgwire.MechanismSCRAMPlus
	v, binding := verifierOf(t, "secret", "0123456789abcdef", 16), bytes.Repeat([]byte{1}, sha256.Size)
	for _, c := range []struct{ mechanism, header string }{
		{scram, "p=tls-server-end-point"}, {plus, "n"}, {plus, "y"}, {plus, "p=tls-unique"}, {plus, "p="}, {plus, "p"}, {plus, ""}, {scram, "x"}, {plus, "xp=tls-server-end-point"}, {"OTHER", "n"}, {"", "n"},
	} {
		if _, err := pgwire.NewScramServer(v, binding).First(c.mechanism, []byte(c.header+",,n=,r=abc")); !errors.Is(err, pgwire.ErrMalformed) {
			t.Errorf("%s with %q: %v", c.mechanism, c.header, err)
		}
	}
	const header = "p=tls-server-end-point,,"
	for _, last := range []string{"", "n,,", "y,,", "p=tls-unique,," + string(binding), header + string(binding) + "\x00", header + strings.Repeat("x", 200)} {
		server := pgwire.NewScramServer(v, binding)
		first, err := server.First(plus, []byte(header+"n=,r=abc"))
		if err != nil {
			t.Fatal(err)
		}
		nonce, _, _ := strings.Cut(string(first), ",")
		final := "c=" + base64.StdEncoding.EncodeToString([]byte(last)) + "," + nonce + ",p=" + strings.Repeat("A", 43) + "="
		if _, err := server.Final([]byte(final)); !errors.Is(err, pgwire.ErrMalformed) && !errors.Is(err, pgwire.ErrChannelBinding) {
			t.Errorf("%q at last: %v", last, err)
		}
	}
}

func TestEndPointBinding(t *testing.T) {
	raw := []byte("not looked into")
	short, long := sha256.Sum256(raw), sha512.Sum512(raw)
	for algorithm, want := range map[x509.SignatureAlgorithm][]byte{
		x509.SHA1WithRSA: short[:], x509.ECDSAWithSHA256: short[:], x509.SHA256WithRSAPSS: short[:], x509.SHA512WithRSA: long[:], x509.PureEd25519: nil, 0: nil,
	} {
		if got := pgwire.EndPointBinding(&x509.Certificate{Raw: raw, SignatureAlgorithm: algorithm}); !bytes.Equal(got, want) {
			t.Errorf("%v: %x, want %x", algorithm, got, want)
		}
	}
}
