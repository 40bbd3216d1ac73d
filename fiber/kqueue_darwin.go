package fiber

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// kqueue is the eventQueue of Darwin. It was compiled and checked by vet but never run, so Auto does not choose it. An
// event belongs to one filter, so reading and writing are two registrations; the kernel identifies a registration by
// its descriptor.
type kqueue struct {
	fd    int
	users []user // indexed by descriptor
	ready [256]unix.Kevent_t
}

// user receives a descriptor's events. A user of an old generation receives none.
type user struct{ slot, generation uint32 }

type systemQueue = kqueue

// wakeIdent identifies the event that ends a wait.
const wakeIdent = 0

// automatic is empty: kqueue must be requested by name.
var automatic []Kind

// newPoller returns a poller for the loop, and the features that it does not have.
func newPoller(l *loop, kind Kind) (p poller, lacks, err error) {
	if kind != Kqueue {
		return nil, nil, fmt.Errorf("%s is for Linux, this is Darwin", kind)
	}
	return newReadiness(l)
}

func (q *kqueue) open() (err error) {
	if q.fd, err = unix.Kqueue(); err != nil {
		return fmt.Errorf("kqueue: %w", err)
	}
	unix.CloseOnExec(q.fd)
	err = q.change(unix.Kevent_t{Ident: wakeIdent, Filter: unix.EVFILT_USER, Flags: unix.EV_ADD | unix.EV_CLEAR})
	if err != nil {
		q.close()
	}
	return err
}

func (q *kqueue) change(events ...unix.Kevent_t) error {
	if _, err := unix.Kevent(q.fd, events, nil, nil); err != nil {
		return fmt.Errorf("kevent: %w", err)
	}
	return nil
}

func (q *kqueue) add(fd int, slot, generation uint32) error {
	q.setUser(fd, user{slot, generation})
	return q.change(socketEvent(fd, unix.EVFILT_READ, unix.EV_ADD|unix.EV_CLEAR), socketEvent(fd, unix.EVFILT_WRITE, unix.EV_ADD|unix.EV_CLEAR))
}

func (q *kqueue) addListener(fd int, slot, generation uint32) error {
	q.setUser(fd, user{slot, generation})
	return q.change(socketEvent(fd, unix.EVFILT_READ, unix.EV_ADD|unix.EV_CLEAR))
}

func (q *kqueue) setUser(fd int, u user) {
	for len(q.users) <= fd {
		q.users = append(q.users, user{})
	}
	q.users[fd] = u
}

func socketEvent(fd int, filter int16, flags uint16) unix.Kevent_t {
	return unix.Kevent_t{Ident: uint64(fd), Filter: filter, Flags: flags}
}

func (q *kqueue) remove(fd int) {
	for _, filter := range []int16{unix.EVFILT_READ, unix.EVFILT_WRITE} { // separately, as a listener has only one
		_ = q.change(socketEvent(fd, filter, unix.EV_DELETE))
	}
}

// wait always informs Go's scheduler, because Darwin allows system calls only through its library.
func (q *kqueue) wait(left int64, _ bool) (n int) {
	var timeout *unix.Timespec
	if left >= 0 {
		t := unix.NsecToTimespec(left)
		timeout = &t
	}
	n, err := unix.Kevent(q.fd, nil, q.ready[:], timeout)
	if err != nil {
		return 0
	}
	return n
}

func (q *kqueue) event(i int) (slot, generation uint32, is readyEvents) {
	ev := &q.ready[i]
	if ev.Filter == unix.EVFILT_USER {
		return wakeSlot, 0, 0
	}
	if ev.Flags&(unix.EV_EOF|unix.EV_ERROR) != 0 {
		is |= endReceived
	}
	switch ev.Filter {
	case unix.EVFILT_READ:
		is |= readReady
	case unix.EVFILT_WRITE:
		if is |= writeReady; is&endReceived != 0 { // the peer accepts nothing more: it has reset the connection or closed its reading half
			is |= readReady
		}
	}
	u := q.users[ev.Ident]
	return u.slot, u.generation, is
}

func (q *kqueue) wake() {
	_ = q.change(unix.Kevent_t{Ident: wakeIdent, Filter: unix.EVFILT_USER, Fflags: unix.NOTE_TRIGGER})
}

func (q *kqueue) close() { _ = unix.Close(q.fd) }

// batchSender is empty: Darwin has no call that sends on several sockets.
type batchSender struct{}

const batchSize = 1

func newBatchSender() (*batchSender, error) {
	return nil, errors.New("the system has no call that sends on several sockets")
}

func (*batchSender) put(int, int, []byte)               {}
func (*batchSender) submit(int, func(int, int64)) error { return errors.ErrUnsupported }
func (*batchSender) free()                              {}
