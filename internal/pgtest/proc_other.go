//go:build !linux

package pgtest

import (
	"os"
	"os/exec"
	"syscall"
)

// apply does nothing here: run the tests as a user who is not root.
func (a account) apply(*exec.Cmd) {}

// owns trusts the file's private mode, which the caller has checked.
func (a account) owns(os.FileInfo) bool { return true }

// killAll kills the server's first process. The others notice and end by themselves.
func killAll(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// signalAll sends a signal to the server's first process.
func signalAll(pid int, signal syscall.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Signal(signal)
}

// removeSegment does nothing here.
func removeSegment(string) error { return nil }

// memoryDir returns "": clusters live in the temporary directory.
func memoryDir() string { return "" }

// hold and removeAbandoned do nothing: the system cleans the temporary directory.
func hold(string) (*os.File, error) { return nil, nil }
func removeAbandoned(string)        {}
