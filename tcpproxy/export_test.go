package tcpproxy

// Spliced returns the number of bytes moved by splice so far.
func (p *Proxy) Spliced() uint64 { return p.spliced.Load() }
