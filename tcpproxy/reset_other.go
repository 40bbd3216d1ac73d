//go:build !linux

package tcpproxy

import "github.com/headpond/headpond/fiber"

// resetTaken returns false: the system does not tell the end of a stream from a reset whose error was taken.
func resetTaken(fiber.Stream) bool { return false }
