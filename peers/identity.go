package peers

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
)

// ErrKey is wrapped by every error about a key file.
var ErrKey = errors.New("peers: key file")

// maxKeyFile bounds the size of a key file in bytes; a key takes about 120.
const maxKeyFile = 4 << 10

// pemType is the type of a key in PKCS #8.
const pemType = "PRIVATE KEY"

// othersMay are the permission bits of group and others, which a key file must not have.
const othersMay fs.FileMode = 0o077

// LoadKey reads an Ed25519 key in PEM (PKCS #8). It refuses a file that anyone but its owner can read,
// write or execute. The error wraps ErrKey, and fs.ErrNotExist if there is no file.
func LoadKey(path string) (ed25519.PrivateKey, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w %s: is not a file", ErrKey, path) // opening a pipe could wait forever
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w %s: is not a file", ErrKey, path)
	case runtime.GOOS != "windows" && info.Mode().Perm()&othersMay != 0: // Windows has no such bits
		return nil, fmt.Errorf("%w %s: others than its owner have access to it (mode %04o); whoever has the key is this node: chmod 600 %s",
			ErrKey, path, info.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	key, err := parseKey(text)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrKey, path, err)
	}
	return key, nil
}

func parseKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemType {
		return nil, fmt.Errorf("want one Ed25519 key in PEM (%q)", pemType)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("not a key in PKCS #8: %w", err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a %T; want an Ed25519 key", parsed)
	}
	return key, nil
}

// LoadOrCreateKey is like LoadKey, but creates a key if there is no file; made reports whether it
// did. The file is created atomically, with mode 0600. If several processes call it at once, all of
// them return the key that one of them has created.
func LoadOrCreateKey(path string) (key ed25519.PrivateKey, made bool, err error) {
	key, err = LoadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, false, err
	}
	made, err = createKey(path)
	if err != nil {
		return nil, false, fmt.Errorf("%w: make one: %w", ErrKey, err)
	}
	key, err = LoadKey(path)
	return key, made, err
}

// createKey writes a new key to path; made is false if another process was faster.
func createKey(path string) (made bool, err error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return false, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return false, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // mode 0600
	if err != nil {
		return false, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return false, err
	}
	switch err = os.Link(f.Name(), path); { // unlike a rename, it replaces nothing
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrExist):
		return false, nil
	}
	return true, os.Rename(f.Name(), path) // a file system without links
}

// IDOf returns the peer ID of a key.
func IDOf(key ed25519.PrivateKey) (string, error) {
	_, id, err := identityOf(key)
	return id.String(), err
}

// identityOf converts a key to libp2p's form and returns its peer ID.
func identityOf(key ed25519.PrivateKey) (crypto.PrivKey, peer.ID, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, "", fmt.Errorf("%w: Key has %d bytes, want an Ed25519 key", ErrConfig, len(key))
	}
	private, _, err := crypto.KeyPairFromStdKey(&key)
	if err != nil {
		return nil, "", fmt.Errorf("%w: Key: %w", ErrConfig, err)
	}
	id, err := peer.IDFromPrivateKey(private)
	return private, id, err
}
