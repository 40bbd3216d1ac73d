//go:build netns

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// internet is a network of TUN devices, one in each namespace that is attached. It holds each packet for delay, loses some, and can be cut
// between two addresses. (The kernel's netem does as much, and is missing in many kernels.)
type internet struct {
	t *testing.T

	mu    sync.RWMutex
	delay time.Duration // one way
	loss  float64
	cuts  map[[2]netip.Addr]bool
	ports map[netip.Addr]*port
	work  sync.WaitGroup
}

// port is the device of an address.
type port struct {
	address netip.Addr
	device  *os.File
	packets chan packet
}

type packet struct {
	data []byte
	due  time.Time
}

// maxQueued bounds the packets under way to an address; more are lost, as by every router.
const maxQueued = 10_000

func newInternet(t *testing.T, delay time.Duration, loss float64) *internet {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("network namespaces need root")
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: apt-get install iproute2 nftables", err)
		}
	}
	i := &internet{t: t, delay: delay, loss: loss, cuts: map[[2]netip.Addr]bool{}, ports: map[netip.Addr]*port{}}
	t.Cleanup(i.close)
	return i
}

// attach gives a namespace an address of this network, by a device "wan".
func (i *internet) attach(ns *namespace, address string) {
	i.t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		i.t.Fatal(err)
	}
	name := fmt.Sprintf("hpt%d-%d", os.Getpid()%100_000, len(i.ports))
	var request struct { // struct ifreq
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], name)
	request.flags = unix.IFF_TUN | unix.IFF_NO_PI
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		i.t.Fatal("TUNSETIFF: ", errno)
	}
	run(i.t, "ip", "link", "set", name, "netns", ns.name)
	ns.ip("link", "set", name, "name", "wan")
	ns.ip("addr", "add", address+"/24", "dev", "wan")
	ns.ip("link", "set", "wan", "up", "txqueuelen", "10000")
	p := &port{netip.MustParseAddr(address), os.NewFile(uintptr(fd), name), make(chan packet, maxQueued)}
	i.mu.Lock()
	i.ports[p.address] = p
	i.mu.Unlock()
	i.work.Go(func() { i.send(p) })
	i.work.Go(func() { i.deliver(p) })
}

// send takes what a device sends, until it is closed, or gone with its namespace.
func (i *internet) send(p *port) {
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.ports, p.address) // nobody sends to it any more
		close(p.packets)
	}()
	for {
		data := make([]byte, 2048)
		n, err := p.device.Read(data)
		if err != nil {
			return
		}
		if n < 20 || data[0]>>4 != 4 {
			continue
		}
		from, to := netip.AddrFrom4([4]byte(data[12:16])), netip.AddrFrom4([4]byte(data[16:20]))
		i.mu.RLock()
		next, lost := i.ports[to], i.cuts[[2]netip.Addr{from, to}] || rand.Float64() < i.loss
		due := time.Now().Add(i.delay)
		if next != nil && !lost {
			select {
			case next.packets <- packet{data[:n], due}:
			default:
			}
		}
		i.mu.RUnlock()
	}
}

// deliver gives a device what was sent to it, when it is due.
func (i *internet) deliver(p *port) {
	for next := range p.packets {
		<-time.After(time.Until(next.due)) // the delay of the network, in order
		_, _ = p.device.Write(next.data)
	}
}

// cut cuts or heals the way between two addresses.
func (i *internet) cut(a, b string, cut bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	from, to := netip.MustParseAddr(a), netip.MustParseAddr(b)
	i.cuts[[2]netip.Addr{from, to}], i.cuts[[2]netip.Addr{to, from}] = cut, cut
}

func (i *internet) close() {
	i.mu.RLock()
	for _, p := range i.ports {
		_ = p.device.Close()
	}
	i.mu.RUnlock()
	i.work.Wait()
}

// namespace is a network namespace.
type namespace struct {
	t    *testing.T
	name string
}

func newNamespace(t *testing.T, name string) *namespace {
	t.Helper()
	ns := &namespace{t, fmt.Sprintf("hp%d%s", os.Getpid(), name)}
	run(t, "ip", "netns", "add", ns.name)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", ns.name).CombinedOutput(); err != nil {
			t.Errorf("ip netns del: %v %s", err, out)
		}
	})
	ns.ip("link", "set", "lo", "up")
	return ns
}

// ip runs ip(8) in the namespace.
func (ns *namespace) ip(args ...string) {
	ns.t.Helper()
	run(ns.t, "ip", append([]string{"-n", ns.name}, args...)...)
}

// within calls f on a thread in the namespace: sockets that it makes belong there.
func (ns *namespace) within(f func() error) error {
	result := make(chan error)
	go func() {
		result <- func() error {
			runtime.LockOSThread() // and the thread ends with the goroutine
			fd, err := unix.Open("/run/netns/"+ns.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd) //nolint:errcheck // nothing was written
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-result
}

// dial connects from the namespace.
func (ns *namespace) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = ns.within(func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// listen listens in the namespace.
func (ns *namespace) listen(address string) net.Listener {
	ns.t.Helper()
	var l net.Listener
	err := ns.within(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		ns.t.Fatal(err)
	}
	return l
}

// routerSuffix is in the name of the namespace of the router of a site.
const routerSuffix = "-nat"

// behindNAT makes a namespace with the private network 10.0.n.0/24 behind a router with an address of the internet, as people have it at
// home: what goes out gets the router's address, what comes in without having been asked for is dropped.
func behindNAT(t *testing.T, i *internet, name, address string, n int) *namespace {
	t.Helper()
	router, inside := newNamespace(t, name+routerSuffix), newNamespace(t, name)
	i.attach(router, address)
	run(t, "ip", "link", "add", "lan", "netns", router.name, "type", "veth", "peer", "name", "lan", "netns", inside.name)
	for k, ns := range []*namespace{router, inside} {
		ns.ip("addr", "add", fmt.Sprintf("10.0.%d.%d/24", n, k+1), "dev", "lan")
		ns.ip("link", "set", "lan", "up")
	}
	inside.ip("route", "add", "default", "via", fmt.Sprintf("10.0.%d.1", n))
	run(t, "ip", "netns", "exec", router.name, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	rules := exec.Command("ip", "netns", "exec", router.name, "nft", "-f", "-")
	rules.Stdin = strings.NewReader(`
table ip home {
	chain out { type nat hook postrouting priority 100; oifname "wan" masquerade; }
	chain in { type filter hook input priority 0; iifname "wan" ct state established,related accept; iifname "wan" drop; }
	chain through { type filter hook forward priority 0; iifname "wan" ct state established,related accept; iifname "wan" ct status dnat accept; iifname "wan" drop; }
}
`)
	if out, err := rules.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v %s", err, out)
	}
	return inside
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v %s", program, args, err, out)
	}
}
