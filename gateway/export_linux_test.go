package gateway

import "golang.org/x/sys/unix"

// DefersAccept reports whether a listener's connections are accepted only when their clients have sent something.
func (g *Gateway) DefersAccept(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.services {
		if s.cfg.Name == name {
			f, err := fileOf(s.socket.Listener)
			if err != nil {
				panic(err)
			}
			defer func() { _ = f.Close() }()
			raw, err := f.SyscallConn()
			if err != nil {
				panic(err)
			}
			seconds := 0
			if failed := raw.Control(func(fd uintptr) { seconds, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT) }); failed != nil || err != nil {
				panic(err)
			}
			return seconds > 0
		}
	}
	panic(name)
}
