// Package route stands for the real one.
package route

import (
	"context"
	"io"
)

type Ctx struct{}

func (*Ctx) Context() context.Context { return nil }
func (*Ctx) Detach() *Detached        { return nil }

type Detached struct{}

func (*Detached) Route() string { return "" }

type Files struct{}

type Stream struct{ Write func(w io.Writer) error }
