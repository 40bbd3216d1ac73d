package tcpproxy

import (
	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/splice"
)

// ResetTaken is resetTaken.
func ResetTaken(c fiber.Stream) bool { return resetTaken(c) }

const (
	MaxPipes     = splice.Max
	MaxIdlePipes = splice.MaxIdle
)

// Pipes returns how many pipes the process has open and how many of them wait.
func Pipes() (open, idle int) { return splice.Open() }

// TakeAllPipes leaves none, until they are given back.
func TakeAllPipes() (n int, giveBack func()) {
	var taken []*splice.Pipe
	for p := splice.Take(); p != nil; p = splice.Take() {
		taken = append(taken, p)
	}
	return len(taken), func() {
		for _, p := range taken {
			splice.Put(p)
		}
	}
}
