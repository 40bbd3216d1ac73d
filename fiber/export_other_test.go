//go:build !(linux && (amd64 || arm64))

package fiber

import "net"

// PipeFiles returns 0.
func PipeFiles() int { return 0 }

// WatchdogSleeps returns true: there is no watchdog.
func (e *Engine) WatchdogSleeps() bool { return true }

// PoisonFreed does nothing where there are no buffers.
func PoisonFreed(bool) {}

// Buffers returns zeros.
func (e *Engine) Buffers() (receiving, sending int) { return 0, 0 }

// Timers returns 0.
func (e *Engine) Timers() int { return 0 }

// SameLoop returns true.
func SameLoop(net.Conn, net.Conn) bool { return true }

// Expire does nothing.
func Expire(net.Conn) {}

// CanSplice does not matter where nothing is spliced.
func CanSplice() bool { return true }
