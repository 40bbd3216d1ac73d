// Command tunnel-ttfb measures the time to the first byte of short TCP connections, directly and
// through a tunnel, alternately. scripts/bench-tunnel.sh runs it across network namespaces with a
// delay between them.
//
//	tunnel-ttfb serve 10.0.0.2:9000
//	tunnel-ttfb load -rate 1000 -seconds 5 -rounds 3 10.0.0.2:9000 127.0.0.1:7000
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	question = 100  // bytes
	answer   = 1024 // bytes
	patience = 5 * time.Second
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tunnel-ttfb:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	usage := errors.New("want \"serve ADDRESS\", \"delay TIME DEVICE DEVICE\" or \"load [FLAGS] DIRECT TUNNEL\"")
	if len(args) < 2 {
		return usage
	}
	switch args[0] {
	case "serve":
		return serve(args[1])
	case "delay":
		if len(args) != 4 {
			return usage
		}
		by, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		return delay(by, args[2], args[3])
	case "load":
		flags := flag.NewFlagSet("load", flag.ContinueOnError)
		l := load{}
		flags.IntVar(&l.rate, "rate", 1000, "connections per second")
		flags.IntVar(&l.seconds, "seconds", 5, "length of a round")
		flags.IntVar(&l.rounds, "rounds", 3, "rounds of each arm")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if flags.NArg() != 2 || l.rate < 1 || l.seconds < 1 || l.rounds < 1 {
			return usage
		}
		return l.compare(os.Stdout, flags.Arg(0), flags.Arg(1))
	}
	return usage
}

// serve reads a request from each connection, answers and closes it.
func serve(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if _, err := io.ReadFull(c, make([]byte, question)); err == nil {
				_, _ = c.Write(make([]byte, answer))
			}
		}()
	}
}

// load opens connections at a fixed rate, however long they take.
type load struct{ rate, seconds, rounds int }

// result is one arm in one round.
type result struct {
	times  []time.Duration // to the first byte, in order
	failed int
	err    error // one of the failures
}

func (r *result) quantile(q float64) time.Duration {
	if len(r.times) == 0 {
		return 0
	}
	return r.times[min(len(r.times)-1, int(q*float64(len(r.times))))]
}

// compare runs the arms alternately. It prints each round and the ratio of the overall medians.
func (l load) compare(w io.Writer, direct, tunnel string) error {
	names, addresses := []string{"direct", "tunnel"}, []string{direct, tunnel}
	var all [2]result
	for i := range addresses { // warm up: name caches, sessions, memory
		one := l
		one.seconds, one.rate = 1, max(1, l.rate/10)
		one.round(addresses[i])
	}
	for round := range l.rounds {
		for i := range addresses {
			r := l.round(addresses[i])
			fmt.Fprintf(w, "round %d  %s  p50 %8v  p90 %8v  p99 %8v  %d connections, %d failed\n",
				round+1, names[i], short(r.quantile(0.5)), short(r.quantile(0.9)), short(r.quantile(0.99)), len(r.times), r.failed)
			all[i].times = append(all[i].times, r.times...)
			all[i].failed += r.failed
			if r.err != nil {
				fmt.Fprintf(w, "         %s  for instance: %v\n", names[i], r.err)
			}
		}
	}
	for i := range all {
		slices.Sort(all[i].times)
		if len(all[i].times) == 0 {
			return fmt.Errorf("%s: no connection succeeded", names[i])
		}
	}
	fmt.Fprintf(w, "time to first byte, tunnel / direct:  p50 %.3f  p90 %.3f  p99 %.3f\n",
		ratio(all, 0.5), ratio(all, 0.9), ratio(all, 0.99))
	if all[1].failed > 0 {
		return fmt.Errorf("%d connections through the tunnel failed", all[1].failed)
	}
	return nil
}

func ratio(all [2]result, q float64) float64 {
	return float64(all[1].quantile(q)) / float64(all[0].quantile(q))
}

func short(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// round opens connections for the duration of one round.
func (l load) round(address string) result {
	var mu sync.Mutex
	var r result
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range l.rate * l.seconds {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(l.rate))))
		wg.Go(func() {
			d, err := once(address)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				r.failed, r.err = r.failed+1, err
				return
			}
			r.times = append(r.times, d)
		})
	}
	wg.Wait()
	slices.Sort(r.times)
	return r
}

// once makes one short connection: it connects, sends a request, and reads the answer to its end.
func once(address string) (first time.Duration, err error) {
	begin := time.Now()
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.SetDeadline(begin.Add(patience))
	if _, err := c.Write(make([]byte, question)); err != nil {
		return 0, err
	}
	buf := make([]byte, answer)
	n, err := c.Read(buf)
	if err != nil {
		return 0, err
	}
	first = time.Since(begin)
	_, err = io.ReadFull(c, buf[n:])
	return first, err
}
