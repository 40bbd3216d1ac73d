//go:build !linux

package pgtest

import (
	"errors"
	"os"
	"os/exec"
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

// freezeAll and thawAll are not supported: the server's other processes would run on.
func freezeAll(int) error { return errors.ErrUnsupported }
func thawAll(int) error   { return errors.ErrUnsupported }

// removeSegment does nothing here.
func removeSegment(string) error { return nil }

// memoryDir returns "": clusters live in the temporary directory.
func memoryDir() string { return "" }

// hold and removeAbandoned do nothing: the system cleans the temporary directory.
func hold(string) (*os.File, error) { return nil, nil }
func removeAbandoned(string)        {}
