package config

import (
	"reflect"
	"time"
)

// EditDistance is editDistance.
func EditDistance(a, b string) int { return editDistance(a, b) }

// SetTag stores text in the value p points to as the field with that tag would.
func SetTag(p any, text string, tag reflect.StructTag) error {
	d := &decoder{}
	return d.set(reflect.ValueOf(p).Elem(), text, tag)
}

// ReadFileFor is readFileFor, for secrets.
func ReadFileFor(path string, patience time.Duration) ([]byte, error) {
	return readFileFor(path, maxSecretBytes, patience)
}
