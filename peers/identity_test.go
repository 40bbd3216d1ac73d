package peers_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/peers"
)

// TestKeyFile: a key is made once, for its owner alone, and is the same ever after.
func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	first, made, err := peers.LoadOrCreateKey(path)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	again, made, err := peers.LoadOrCreateKey(path)
	if err != nil || made || !bytes.Equal(first, again) {
		t.Errorf("another key: made %v, %v", made, err)
	}
	if id := idOf(t, again); !strings.HasPrefix(id, "12D3KooW") {
		t.Error(id)
	}
	if left, _ := filepath.Glob(path + ".new-*"); len(left) > 0 {
		t.Error(left)
	}
}

// TestKeyFileOfSeveral: nodes that start at once with one file have one identity.
func TestKeyFileOfSeveral(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	ids := make([]string, 16)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			key, _, err := peers.LoadOrCreateKey(path)
			if err == nil {
				ids[i], err = peers.IDOf(key)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatal(ids)
		}
	}
}

func TestKeyFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		mode       fs.FileMode
		want       string
	}{
		{"garbage", "not a key", 0o600, "want one Ed25519 key in PEM"},
		{"empty", "", 0o600, "want one Ed25519 key in PEM"},
		{"broken", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600, "not a key in PKCS #8"},
		{"rsa", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), 0o600, "*rsa.PrivateKey; want an Ed25519 key"},
		{"world", "x", 0o644, "others than its owner have access to it (mode 0644)"},
		{"group", "x", 0o640, "chmod 600"},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		_, made, err := peers.LoadOrCreateKey(path)
		if !errors.Is(err, peers.ErrKey) || made || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if text, _ := os.ReadFile(path); string(text) != c.text {
			t.Errorf("%s has been changed", c.name)
		}
	}
	if _, err := peers.LoadKey(dir); !errors.Is(err, peers.ErrKey) {
		t.Error("a folder:", err)
	}
	if _, err := peers.LoadKey(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, _, err := peers.LoadOrCreateKey(filepath.Join(dir, "none", "node.key")); !errors.Is(err, peers.ErrKey) {
		t.Error(err)
	}
}
