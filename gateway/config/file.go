package config

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
)

// readTime bounds the reading of a file. A named pipe without a writer, or a network file system that hangs, would
// block this reload, all later ones, and the end of the gateway. The admin page has more time than this to answer a
// reload.
const readTime = 10 * time.Second

// Read returns the content of the file, of at most 16 MiB. It gives up when that takes more than ten seconds.
func (p Path) Read() ([]byte, error) { return readFile(string(p), maxNamedFileBytes) }

// ReadRegular is Read for a regular file, or a link to one. Others it does not open: what is in a pipe can be read once.
func (p Path) ReadRegular() ([]byte, error) {
	switch info, err := os.Stat(string(p)); {
	case err != nil:
		return nil, fmt.Errorf("cannot read %q: %w", string(p), plainError(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%q is not a regular file", string(p))
	}
	return p.Read()
}

// KeyPair reads a certificate and its key, as Path.Read does.
func KeyPair(cert, key Path) (tls.Certificate, error) {
	certPEM, err := cert.Read()
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM, err := key.Read()
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	switch {
	case err == nil:
	case encrypted(keyPEM):
		err = fmt.Errorf("the key is encrypted with a passphrase, which nobody can enter here; \"openssl pkey -in %s -out NEW\" writes it without one", key)
	case strings.Contains(err.Error(), "private key does not match public key"):
		err = fmt.Errorf("%w; the key must belong to the first certificate of the file", err)
	}
	return pair, err
}

// encrypted reports whether the first private key of a PEM file needs a passphrase.
func encrypted(keyPEM []byte) bool {
	for {
		var block *pem.Block
		if block, keyPEM = pem.Decode(keyPEM); block == nil {
			return false
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return strings.HasPrefix(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != ""
		}
	}
}

// readFile reads a file of at most limit bytes, within readTime. Its errors describe the problem without the path: the
// caller adds its position.
func readFile(path string, limit int64) ([]byte, error) {
	return readFileFor(path, limit, readTime)
}

func readFileFor(path string, limit int64, patience time.Duration) ([]byte, error) {
	r := takeUp(file{path, limit})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-r.done:
		return r.data, r.err
	case <-timer.C:
	}
	abandoned.Store(file{path, limit}, r)
	return nil, fmt.Errorf("cannot read %q: it did not end within %s; is it a pipe without a writer, or on a file system that does not answer?",
		path, patience)
}

// file identifies the file of a reading.
type file struct {
	path  string
	limit int64
}

// reading is the reading of a file; data and err are set once done is closed.
type reading struct {
	done chan struct{}
	data []byte
	err  error
}

// abandoned holds reads that took too long, by file. The next caller for the same file waits for the old read.
// Otherwise each attempt would leave another thread behind, and data written to a pipe at last could go to a read
// without a caller.
var abandoned sync.Map

// takeUp begins to read f, or returns a reading that was abandoned earlier.
func takeUp(f file) *reading {
	if old, ok := abandoned.LoadAndDelete(f); ok {
		select {
		case <-old.(*reading).done: // it ended between two calls; the file may be another one by now
		default:
			return old.(*reading) //nolint:forcetypeassert // nothing else is stored
		}
	}
	r := &reading{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.data, r.err = f.read()
	}()
	return r
}

func (f file) read() ([]byte, error) {
	open, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", f.path, plainError(err))
	}
	defer func() { _ = open.Close() }()
	if info, err := open.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("cannot read %q: it is a folder", f.path)
	}
	data, err := io.ReadAll(io.LimitReader(open, f.limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read %q: %w", f.path, plainError(err))
	case int64(len(data)) > f.limit:
		return nil, fmt.Errorf("cannot read %q: it is larger than %d KiB", f.path, f.limit>>10)
	}
	return data, nil
}

// plainError takes the operation and path off an error of package os.
func plainError(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
