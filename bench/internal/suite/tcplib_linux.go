package suite

import (
	"context"
	"io"
	"net"

	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/pool/tcppool"
)

// tcpLibrary is W1a and W1b: the library in a program, without a proxy.
func (e *Env) tcpLibrary() []run.Group {
	establish := run.Group{Name: "TCP library", Prepare: e.prepareEcho, Arms: []run.Arm{
		e.dialArm("dial", 100, nil), e.pooledArm("tcppool", 100, nil),
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W1a", Suite: "tcp", Metrics: libraryMetrics, Title: "TCP library: 100 times connect and close, or get and release",
			Claim:   "94.6 µs → 251 ns for each of them, 376 times",
			Because: "the study's pool hands out connections without looking whether they still live; ours looks at each (one system call)",
		},
		Baselines: []string{"dial"}, Open: openLibrary,
	}}}
	body := make([]byte, 1<<10)
	realistic := run.Group{Name: "TCP library", Prepare: e.prepareEcho, Arms: []run.Arm{
		e.dialArm("dial", 1, body), e.pooledArm("tcppool", 1, body),
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W1b", Suite: "tcp", Metrics: libraryMetrics, Title: "TCP library: 1 KiB there and back, with a connection each time or a pooled one",
			Claim:   "222.9 → 14.8 µs, 5,189 → 360 B, 115 → 10 allocations (15 times)",
			Because: "client and server of the study were one process, so that its allocations are those of both",
		},
		Baselines: []string{"dial"}, Open: openLibrary,
	}}}
	return []run.Group{establish, realistic}
}

// dialArm connects, exchanges body if there is one, and closes, n times.
func (e *Env) dialArm(name string, n int, body []byte) run.Arm {
	return libraryArm(name, func(context.Context) (library, error) {
		answer := make([]byte, len(body))
		return library{op: times(n, func(ctx context.Context) error {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", e.echo.Addr)
			if err != nil {
				return err
			}
			defer c.Close()
			return exchange(c, body, answer)
		})}, nil
	})
}

// pooledArm is the same by tcppool with its defaults, which are the study's: 10 connections, idle for 5 minutes.
func (e *Env) pooledArm(name string, n int, body []byte) run.Arm {
	return libraryArm(name, func(context.Context) (library, error) {
		d, err := tcppool.New(tcppool.Config{})
		if err != nil {
			return library{}, err
		}
		answer := make([]byte, len(body))
		return library{close: d.Close, op: times(n, func(ctx context.Context) error {
			c, err := d.Get(ctx, "tcp", e.echo.Addr)
			if err != nil {
				return err
			}
			if err := exchange(c, body, answer); err != nil {
				_ = c.Close()
				return err
			}
			c.Release()
			return nil
		})}, nil
	})
}

func exchange(c net.Conn, body, answer []byte) error {
	if len(body) == 0 {
		return nil
	}
	if _, err := c.Write(body); err != nil {
		return err
	}
	_, err := io.ReadFull(c, answer)
	return err
}
