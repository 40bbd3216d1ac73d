//go:build !linux

package mux

import "net"

// rawWriter exists on Linux only; elsewhere the writer writes for impatient callers.
type rawWriter struct{}

func newRawWriter(net.Conn) *rawWriter { return nil }

func (w *rawWriter) write([][]byte) (int, error) { panic("mux: no rawWriter here") }
