package config

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted is printed in place of every Secret.
const redacted = "[redacted]"

// maxSecretBytes bounds a secret's file; a longer one is the wrong file.
const maxSecretBytes = 64 << 10

// Secret is a value that is never printed: fmt (any verb), slog, JSON and YAML show "[redacted]" for it. The zero value is "no secret".
type Secret struct {
	value string
	from  string // "file:/path" if it was read from a file
}

// NewSecret returns a Secret that holds value.
func NewSecret(value string) Secret { return Secret{value: value} }

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return s.value }

// IsZero reports whether no secret was given.
func (s Secret) IsZero() bool { return s.value == "" && s.from == "" }

// String returns "[redacted]", or "" for the zero value.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return redacted
}

// Format implements fmt.Formatter, so that no verb shows the secret.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements encoding.TextMarshaler, which JSON uses too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Redacted reports whether a secret is the text that YAML writes in place of secrets.
func (s Secret) Redacted() bool { return s.value == redacted }
