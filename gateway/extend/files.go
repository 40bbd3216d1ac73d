package extend

import (
	"crypto/sha256"
	"fmt"

	"github.com/headpond/headpond/gateway/config"
)

// Fingerprint is a hash of files, which shows whether their content changed between two reloads.
type Fingerprint [sha256.Size]byte

// FingerprintOf reads every file that is named; empty names are skipped.
func FingerprintOf(paths ...config.Path) (Fingerprint, error) {
	h := sha256.New()
	for _, p := range paths {
		if p == "" {
			continue
		}
		data, err := p.Read()
		if err != nil {
			return Fingerprint{}, err
		}
		_, _ = fmt.Fprintf(h, "%s %d\n", p, len(data))
		_, _ = h.Write(data)
	}
	return Fingerprint(h.Sum(nil)), nil
}

// TLSFiles lists the files of TLS settings, which may be nil.
func TLSFiles(t *config.ClientTLS) []config.Path {
	if t == nil {
		return nil
	}
	return []config.Path{t.CA, t.Cert, t.Key}
}
