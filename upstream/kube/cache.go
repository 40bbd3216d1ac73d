package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/upstream"
)

// kept is the content of the file with the last good set.
type kept struct {
	Service   string         `json:"service"`
	Port      string         `json:"port,omitempty"`
	Saved     time.Time      `json:"saved"`
	Endpoints []keptEndpoint `json:"endpoints"`
}

type keptEndpoint struct {
	Address  string            `json:"address"`
	Priority int               `json:"priority,omitempty"`
	Zone     string            `json:"zone,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// kept reads the file; a missing file is no error. Who can write the file decides where connections go, so only its
// owner may have write permission.
func (s *Source) kept() ([]upstream.Endpoint, error) {
	if s.cfg.Cache == "" {
		return nil, nil
	}
	info, err := os.Stat(s.cfg.Cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	wrap := func(err error) error {
		return fmt.Errorf("the kept endpoints in %s are not used: %w", s.cfg.Cache, err)
	}
	if err == nil && info.Mode().Perm()&0o022 != 0 && runtime.GOOS != "windows" {
		return nil, wrap(fmt.Errorf("other users can write to it (mode %v)", info.Mode().Perm()))
	}
	if err == nil {
		err = checkOwner(info)
	}
	if err != nil {
		return nil, wrap(err)
	}
	data, err := readFile(s.cfg.Cache)
	if err != nil {
		return nil, wrap(err)
	}
	var k kept
	if err := json.Unmarshal(data, &k); err != nil {
		return nil, wrap(err)
	}
	if k.Service != s.service() || k.Port != s.cfg.Port {
		return nil, wrap(fmt.Errorf("they are of service %q and port %q", k.Service, k.Port))
	}
	var set []upstream.Endpoint
	if most := upstream.MaxEndpoints - len(s.cfg.Bootstrap); len(k.Endpoints) > most {
		return nil, wrap(fmt.Errorf("%d endpoints; at most %d are possible", len(k.Endpoints), most))
	}
	for _, e := range k.Endpoints {
		if err := e.verify(); err != nil { // otherwise the whole set, with Bootstrap's addresses, would be refused
			return nil, wrap(err)
		}
		m := map[string]string{"kept": k.Saved.Format(time.RFC3339)}
		for key, value := range e.Metadata {
			m[key] = value
		}
		set = append(set, upstream.Endpoint{Address: e.Address, Priority: e.Priority, Zone: e.Zone, Metadata: m})
	}
	return set, nil
}

// verify returns an error for values that no set of the API could have.
func (e *keptEndpoint) verify() error {
	network, _, err := netaddr.Split(e.Address)
	switch {
	case err != nil:
		return err
	case network != "tcp":
		return fmt.Errorf("endpoint %q: want host:port", e.Address)
	case e.Priority < 0 || e.Priority >= bootstrapped:
		return fmt.Errorf("endpoint %q: priority %d is not possible", e.Address, e.Priority)
	}
	return nil
}

// keep writes the file: it makes a new file, which only its owner can read and write, and replaces the old one by it
// atomically.
func (s *Source) keep(set []upstream.Endpoint) error {
	if s.cfg.Cache == "" {
		return nil
	}
	k := kept{Service: s.service(), Port: s.cfg.Port, Saved: time.Now().UTC().Truncate(time.Second)}
	for _, e := range set {
		k.Endpoints = append(k.Endpoints, keptEndpoint{e.Address, e.Priority, e.Zone, e.Metadata})
	}
	data, err := json.MarshalIndent(k, "", " ")
	if err != nil {
		return err
	}
	if err := replaceFile(s.cfg.Cache, append(data, '\n')); err != nil {
		return fmt.Errorf("the endpoints cannot be kept: %w", err)
	}
	return nil
}

// replaceFile writes a file with mode 0600, completely or not at all, even if the machine stops meanwhile.
func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.ReadFrom(bytes.NewReader(data))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
