package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// delay makes two TUN devices and passes each packet of one to the other after a while, as netem does, for kernels
// without it. It says "ready" when the devices can be moved to their namespaces, and goes on until it is killed.
func delay(by time.Duration, first, second string) error {
	a, err := openTUN(first)
	if err != nil {
		return err
	}
	b, err := openTUN(second)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	failed := make(chan error, 2)
	go func() { failed <- hold(by, b, a) }()
	go func() { failed <- hold(by, a, b) }()
	return <-failed
}

// openTUN makes a device that goes away with the process.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// packet is due to be written at a time.
type packet struct {
	data []byte
	due  time.Time
}

// inFlight is more than 20 ms of any load of this program.
const inFlight = 1 << 14

func hold(by time.Duration, dst, src *os.File) error {
	queue := make(chan packet, inFlight)
	go func() {
		for p := range queue {
			if d := time.Until(p.due); d > 0 {
				time.Sleep(d)
			}
			_, _ = dst.Write(p.data) // a device that is down, or full, loses packets, as a network does
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return err
		}
		select {
		case queue <- packet{append([]byte(nil), buf[:n]...), time.Now().Add(by)}:
		default:
		}
	}
}
