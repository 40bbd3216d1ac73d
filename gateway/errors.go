package gateway

import "errors"

var (
	// ErrListen is wrapped by errors about an address that cannot be bound; they name the listener and the address.
	ErrListen = errors.New("cannot listen")
	// ErrClosed: the gateway drains or is closed.
	ErrClosed = errors.New("gateway: closed")
	// ErrNoFile: the configuration did not come from a file that could be read again.
	ErrNoFile = errors.New("gateway: there is no configuration file to reload")
	// ErrCutOff is wrapped by Run's error when sessions were still running at the end of the drain time-out, or at Close.
	ErrCutOff = errors.New("gateway: sessions were cut off")
)
