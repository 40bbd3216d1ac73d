package gateway_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/certs"
)

// A certificate that clients could not bind to is found before they try.
func TestChannelBindingNeedsHash(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	for want, pair := range map[string]tls.Certificate{
		"its signature, Ed25519, has no hash function": {Certificate: [][]byte{der}, PrivateKey: private},
		"": certs.New().Certificate,
	} {
		dir := t.TempDir()
		cert, key := certs.PEM(pair)
		for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key, "users.txt": []byte(`"app" "secret"`), "headpond.yaml": []byte(`listeners:
  - {name: it, protocol: postgres, listen: "127.0.0.1:0", upstream: pg, tls: {cert: cert.pem, key: key.pem}, postgres: {users_file: users.txt, channel_binding: require}}
upstreams:
  pg: {endpoints: ["127.0.0.1:1"], postgres: {user: app}}
`)} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, problems := config.Load(filepath.Join(dir, "headpond.yaml"))
		problems = slices.DeleteFunc(problems, func(p config.Problem) bool { return p.Warning }) // they expire soon
		if (problems.String() == "") != (want == "") || !strings.Contains(problems.String(), want) {
			t.Errorf("%s, want %q", problems, want)
		}
	}
}
