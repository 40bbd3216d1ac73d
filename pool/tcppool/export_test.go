package tcppool

// Last returns a function that sets d back to the address it has used last, as a Get finds it that began before.
func Last(d *Dialer) (found func()) {
	e := d.last.Load()
	return func() { d.last.Store(e) }
}
