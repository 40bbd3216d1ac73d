//go:build linux && (amd64 || arm64)

package fiber

import "fmt"

// automatic lists the engines with loops that Auto tries, the best first.
var automatic = []Kind{Uring, Epoll}

// newPoller returns a poller for the loop, and the features that it does not have.
func newPoller(l *loop, kind Kind) (p poller, lacks, err error) {
	switch kind {
	case Uring:
		p, err = newUring(l)
	case Epoll:
		p, lacks, err = newReadiness(l)
	default:
		err = fmt.Errorf("%s is not for Linux", kind)
	}
	return p, lacks, err
}
