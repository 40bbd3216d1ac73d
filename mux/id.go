package mux

import (
	"crypto/rand"
	"encoding/hex"
)

// ID names a channel for the application: 128 bits, such as a UUID. The zero ID
// means none. Two channels may have the same; the session does not look at it.
type ID [16]byte

// NewID returns a random ID.
func NewID() (id ID) {
	rand.Read(id[:]) // never fails
	return id
}

// String is the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }
