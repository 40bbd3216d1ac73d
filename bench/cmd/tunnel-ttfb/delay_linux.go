package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// delay makes two TUN devices and forwards each packet from one to the other after a delay, like netem, for kernels
// without it. It prints "ready" when the devices can be moved to their namespaces, and runs until it is killed.
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

// openTUN creates a device that is removed when the process ends.
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

// packet is a packet and the time at which it must be written.
type packet struct {
	data []byte
	due  time.Time
}

// inFlight holds the packets of more than 20 ms under any load of this program.
const inFlight = 1 << 14

func hold(by time.Duration, dst, src *os.File) error {
	queue := make(chan packet, inFlight)
	go func() {
		for p := range queue {
			if d := time.Until(p.due); d > 0 {
				time.Sleep(d)
			}
			_, _ = dst.Write(p.data) // a device that is down or full loses packets, like a network
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
