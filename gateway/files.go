package gateway

import (
	"crypto/sha256"
	"fmt"

	"github.com/headpond/headpond/gateway/config"
)

// fingerprint tells whether the content of files changed between two reloads.
type fingerprint [sha256.Size]byte

// fingerprintOf reads every file that is named; empty names are skipped.
func fingerprintOf(paths ...config.Path) (fingerprint, error) {
	h := sha256.New()
	for _, p := range paths {
		if p == "" {
			continue
		}
		data, err := p.Read()
		if err != nil {
			return fingerprint{}, err
		}
		_, _ = fmt.Fprintf(h, "%s %d\n", p, len(data))
		_, _ = h.Write(data)
	}
	return fingerprint(h.Sum(nil)), nil
}

func listenerFiles(l *config.Listener) []config.Path {
	var files []config.Path
	if l.TLS != nil {
		files = append(files, l.TLS.Cert, l.TLS.Key, l.TLS.ClientCA)
	}
	if l.Postgres != nil {
		files = append(files, l.Postgres.UsersFile)
	}
	return files
}

func upstreamFiles(u *config.Upstream) []config.Path { return tlsFiles(u.TLS) }

func tlsFiles(t *config.ClientTLS) []config.Path {
	if t == nil {
		return nil
	}
	return []config.Path{t.CA, t.Cert, t.Key}
}
