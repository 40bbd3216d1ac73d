package acme

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

// account returns the account at a directory. If the storage has none, it makes one. Gateways with the
// same storage share the account.
func (i *issuer) account(ctx context.Context, client *acme.Client) (acme.Account, error) {
	a, err := i.loadAccount(ctx, client.Directory)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	lock := "account_" + directoryKey(client.Directory)
	if err := i.storage.Lock(ctx, lock); err != nil {
		return a, fmt.Errorf("storage: %w", err)
	}
	defer func() { _ = i.storage.Unlock(context.WithoutCancel(ctx), lock) }()
	if a, err = i.loadAccount(ctx, client.Directory); !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	return i.newAccount(ctx, client)
}

// newAccount registers an account and stores it. The lock is held.
func (i *issuer) newAccount(ctx context.Context, client *acme.Client) (acme.Account, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return acme.Account{}, err
	}
	a := acme.Account{TermsOfServiceAgreed: i.settings.Agree, PrivateKey: key}
	if i.settings.Email != "" {
		a.Contact = []string{"mailto:" + i.settings.Email}
	}
	if eab := i.settings.EAB; eab != nil && client.Directory == i.settings.Directory {
		if err := a.SetExternalAccountBinding(ctx, client, acme.EAB{KeyID: eab.KeyID, MACKey: eab.key()}); err != nil {
			return a, fmt.Errorf("make an account: eab: %w", err)
		}
	}
	if a, err = client.NewAccount(ctx, a); err != nil {
		return a, fmt.Errorf("make an account: %w", err)
	}
	keyPEM, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		return a, err
	}
	text, err := json.MarshalIndent(a, "", "\t")
	if err != nil {
		return a, err
	}
	keyFile, file := accountFiles(client.Directory)
	if err := errors.Join(i.storage.Store(ctx, keyFile, keyPEM), i.storage.Store(ctx, file, text)); err != nil {
		return a, fmt.Errorf("storage: %w", err)
	}
	i.log.Info("acme: account made", "directory", client.Directory, "account", a.Location)
	return a, nil
}

// loadAccount reads the account from the storage. The error wraps fs.ErrNotExist if there is none.
func (i *issuer) loadAccount(ctx context.Context, directory string) (a acme.Account, err error) {
	keyFile, file := accountFiles(directory)
	text, err := i.storage.Load(ctx, file)
	if err != nil {
		return a, fmt.Errorf("storage: %w", err)
	}
	keyPEM, err := i.storage.Load(ctx, keyFile)
	if err != nil {
		return a, fmt.Errorf("storage: %w", err)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("storage: %s: %w; remove it to make another account", file, err)
	}
	if a.PrivateKey, err = certmagic.PEMDecodePrivateKey(keyPEM); err != nil {
		return a, fmt.Errorf("storage: %s: %w; remove it to make another account", keyFile, err)
	}
	return a, nil
}

// forget removes an account that the authority does not know.
func (i *issuer) forget(ctx context.Context, directory string) error {
	keyFile, file := accountFiles(directory)
	return errors.Join(i.storage.Delete(ctx, file), i.storage.Delete(ctx, keyFile))
}

func accountFiles(directory string) (key, account string) {
	folder := "accounts/" + directoryKey(directory) + "/"
	return folder + "account.key", folder + "account.json"
}
