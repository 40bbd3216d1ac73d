package gateway

import "syscall"

// restrict makes a unix socket with at most the permissions of mode: no other user connects to it before apply.
func (p permission) restrict(network, _ string, c syscall.RawConn) (err error) {
	if p.mode == 0 || network != "unix" {
		return nil
	}
	if failed := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(p.mode)&0o700) }); failed != nil {
		return failed
	}
	return err
}
