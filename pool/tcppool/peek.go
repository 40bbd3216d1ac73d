package tcppool

// state is what a look at a socket shows.
type state int

const (
	silent  state = iota // open, and nothing to read
	pending              // something to read
	dead                 // closed by the peer, or broken
	unknown              // the connection does not show its socket
)
