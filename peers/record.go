package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/internal/identity"
)

// Limits of a record. No node makes a record beyond them, so such a record counts as forged.
const (
	maxRecord        = 16 << 10 // bytes, with the signature; a service with a few groups takes some 100
	maxRecordItems   = 64       // services
	maxRecordAddrs   = 16
	maxGroups        = 64 // of a service
	maxGroup         = identity.MaxGroup
	maxVersion       = 64
	minLife, maxLife = time.Second, time.Minute
	// maxSkew bounds the difference between the time of a record and this node's clock: the clocks'
	// difference and the time that the record took. Older records are refused, because this node
	// may have forgotten a later one of the same node.
	maxSkew = 2 * time.Minute
)

// Errors about records of other nodes.
var (
	errForged = errors.New("forged or broken")
	errFuture = errors.New("from the future")
	errStale  = errors.New("out of date")
)

// Offer is a service in a node's record.
type Offer struct {
	Name     string   `json:"name"`
	Groups   []string `json:"groups,omitempty"`   // requests that it serves, such as "model=llama3"
	Load     int      `json:"load"`               // open connections
	Capacity int      `json:"capacity,omitempty"` // concurrent connections that callers should respect; 0: unknown
}

// nodeRecord is the record that a node signs and announces: its addresses and all its services.
// Each record replaces the node's previous one.
type nodeRecord struct {
	Issued   int64    `json:"issued"` // nanoseconds since 1970; also orders the records of a node
	Life     int64    `json:"life"`   // milliseconds for which it is valid
	Addrs    []string `json:"addrs,omitempty"`
	Version  string   `json:"version,omitempty"`
	Services []Offer  `json:"services"` // empty: the node leaves
}

// recordDomain is part of what is signed, so that the signature is not valid for anything else.
const recordDomain = "headpond-services"

var recordCodec = []byte("/headpond/services/1")

// Domain implements record.Record.
func (*nodeRecord) Domain() string { return recordDomain }

// Codec implements record.Record.
func (*nodeRecord) Codec() []byte { return recordCodec }

// MarshalRecord implements record.Record.
func (r *nodeRecord) MarshalRecord() ([]byte, error) { return json.Marshal(r) }

// UnmarshalRecord implements record.Record.
func (r *nodeRecord) UnmarshalRecord(data []byte) error { return json.Unmarshal(data, r) }

func (r *nodeRecord) issued() time.Time   { return time.Unix(0, r.Issued) }
func (r *nodeRecord) life() time.Duration { return time.Duration(r.Life) * time.Millisecond }

// seal signs a record.
func seal(r *nodeRecord, key crypto.PrivKey) ([]byte, error) {
	envelope, err := record.Seal(r, key)
	if err != nil {
		return nil, err
	}
	data, err := envelope.Marshal()
	if err == nil && len(data) > maxRecord {
		err = fmt.Errorf("%w: the services of this node take %d bytes to tell of, and %d are possible", ErrConfig, len(data), maxRecord)
	}
	return data, err
}

// unseal verifies the signature and the content of a record, and returns its node. The error wraps
// errForged, errFuture or errStale.
func unseal(data []byte, now time.Time) (peer.ID, *nodeRecord, error) {
	if len(data) > maxRecord {
		return "", nil, fmt.Errorf("%w: %d bytes", errForged, len(data))
	}
	r := &nodeRecord{}
	envelope, err := record.ConsumeTypedEnvelope(data, r)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", errForged, err)
	}
	id, err := peer.IDFromPublicKey(envelope.PublicKey)
	if err == nil {
		err = r.verify()
	}
	if err != nil {
		return id, nil, fmt.Errorf("%w: %w", errForged, err)
	}
	switch age := now.Sub(r.issued()); {
	case age < -maxSkew:
		return id, nil, fmt.Errorf("%w by %v: its clock, or this one, is wrong", errFuture, -age)
	case age > maxSkew:
		return id, nil, fmt.Errorf("%w by %v", errStale, age)
	}
	return id, r, nil
}

// verify checks the content of a record.
func (r *nodeRecord) verify() error {
	switch {
	case r.life() < minLife || r.life() > maxLife:
		return fmt.Errorf("a life of %v", r.life())
	case len(r.Addrs) > maxRecordAddrs || len(r.Services) > maxRecordItems || len(r.Version) > maxVersion:
		return errors.New("too many addresses or services")
	}
	for _, a := range r.Addrs {
		if _, err := ma.NewMultiaddr(a); err != nil {
			return fmt.Errorf("address: %w", err)
		}
	}
	seen := map[string]bool{}
	for i := range r.Services {
		s := &r.Services[i]
		if err := CheckService(s.Name); err != nil || seen[s.Name] || s.Load < 0 || s.Capacity < 0 || len(s.Groups) > maxGroups {
			return fmt.Errorf("service %q: %w", clip(s.Name), err)
		}
		seen[s.Name] = true
		for _, g := range s.Groups {
			if g == "" || len(g) > maxGroup {
				return fmt.Errorf("service %q: a group of %d bytes", clip(s.Name), len(g))
			}
		}
	}
	return nil
}
