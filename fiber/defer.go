package fiber

import "net"

// DeferAccept sets whether a Listener accepts a TCP connection only when its client has sent something or has ended its
// stream, or after about a second: for protocols in which the client sends first. Then accepting a connection and
// reading its first bytes wake the loop once, not twice. It does nothing for other listeners, and only something on
// Linux. It does not wait, and any goroutine may call it.
func DeferAccept(l net.Listener, on bool) {
	a, ok := l.(*Listener)
	if !ok || a.unix {
		return
	}
	set := func() {
		if !a.closed {
			deferAccept(a.fd, on)
		}
	}
	if a.loop.isCaller() {
		set()
	} else {
		a.loop.post(set)
	}
}
