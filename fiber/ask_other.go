//go:build !linux

package fiber

import "errors"

// An Asker is for Linux.
type Asker struct{}

// NewAsker returns nil.
func NewAsker(Stream) *Asker { return nil }

// Ask is not supported.
func (*Asker) Ask([]byte, []byte) (wrote, read int, err error) { return 0, 0, errors.ErrUnsupported }
