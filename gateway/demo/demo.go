// Package demo prepares `headpond demo`: a SQLite file with sample data, two HTTP backends, a mock of a language model,
// a TCP echo server, and the configuration of a gateway in front of them. It runs no gateway itself; the program gives
// Demo.Config to package gateway, like the configuration of a file.
//
//	d, err := demo.Start(demo.Options{})
//	if err != nil {
//		return err
//	}
//	defer d.Close()
//	gw, err := gateway.New(d.Config, gateway.Options{})
package demo

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/headpond/headpond/gateway/config"
)

// ErrPorts: Options.PortOffset leads out of the range of ports.
var ErrPorts = errors.New("demo: port out of range")

// The demo's ports, before Options.PortOffset is added.
const (
	PostgresPort = 6432
	HTTPPort     = 8080
	TCPPort      = 7000
	AdminPort    = 9090
)

// Options changes the demo; the zero value is the one of `headpond demo`.
type Options struct {
	Data       string       // folder for the database, created if missing and kept; "" = a temporary one, removed by Close
	PortOffset int          // added to every port
	AnyPort    bool         // let the system choose every port (for tests)
	Logger     *slog.Logger // nil = slog.Default()
}

// Demo is a prepared demo. Close it after the gateway.
type Demo struct {
	Config *config.Config // for gateway.New
	YAML   string         // the same, as a file

	data    string
	keep    bool
	servers []io.Closer
}

// Start creates the database and starts the backends, on loopback ports of the system's choice.
func Start(o Options) (*Demo, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	for _, port := range []int{PostgresPort, HTTPPort, TCPPort, AdminPort} {
		if p := port + o.PortOffset; p < 1 || p > 65535 {
			return nil, fmt.Errorf("%w: %d%+d is not from 1 to 65535", ErrPorts, port, o.PortOffset)
		}
	}
	d := &Demo{data: o.Data, keep: o.Data != ""}
	if err := d.start(o); err != nil {
		d.Close()
		return nil, fmt.Errorf("demo: %w", err)
	}
	return d, nil
}

func (d *Demo) start(o Options) (err error) {
	if d.keep {
		err = os.MkdirAll(d.data, 0o755)
	} else {
		d.data, err = os.MkdirTemp("", "headpond-demo-")
	}
	if err != nil {
		return err
	}
	if d.data, err = filepath.Abs(d.data); err != nil {
		return err
	}
	if err := fillDatabase(d.database()); err != nil {
		return fmt.Errorf("database %s: %w", d.database(), err)
	}
	var web []string
	for _, name := range []string{"blue", "green"} {
		addr, err := d.serve(newWeb(name, o.Logger))
		if err != nil {
			return err
		}
		web = append(web, addr)
	}
	model, err := d.serve(newModel())
	if err != nil {
		return err
	}
	echo, err := d.serve(newEcho())
	if err != nil {
		return err
	}
	d.YAML = configText(o, d.database(), web, model, echo)
	cfg, problems := config.Parse("demo.yaml", []byte(d.YAML))
	if err := problems.Err(); err != nil {
		return err
	}
	cfg.File = "" // there is no such file to reload
	d.Config = cfg
	return nil
}

// server is a backend of the demo.
type server interface {
	io.Closer
	serve(l net.Listener)
}

// serve starts a backend and returns its address.
func (d *Demo) serve(s server) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	d.servers = append(d.servers, s)
	s.serve(l)
	return l.Addr().String(), nil
}

func (d *Demo) database() string { return filepath.Join(d.data, "demo.db") }

// Database returns the path of the SQLite file.
func (d *Demo) Database() string { return d.database() }

// Close ends the backends and removes the database unless Options.Data kept it.
func (d *Demo) Close() {
	for _, s := range d.servers {
		_ = s.Close()
	}
	if !d.keep && d.data != "" {
		_ = os.RemoveAll(d.data)
	}
}

// Lines returns the text to print once the gateway runs: one command to try for each listener. addr returns the address
// of a listener by name.
func (d *Demo) Lines(addr func(name string) string) string {
	host, port, _ := net.SplitHostPort(addr("db"))
	tcpHost, tcpPort, _ := net.SplitHostPort(addr("echo"))
	kept := "removed at the end"
	if d.keep {
		kept = "kept"
	}
	var b strings.Builder
	line := func(what, try string) { _, _ = fmt.Fprintf(&b, "  %-10s %s\n", what, try) }
	b.WriteString("Headpond demo is running; Ctrl-C ends it. Try:\n\n")
	line("SQLite", fmt.Sprintf("psql -h %s -p %s -U demo demo -c 'select count(*) from users'", host, port))
	line("HTTP", fmt.Sprintf("curl %s/", addr("web")))
	line("streaming", fmt.Sprintf("curl -N %s/sse", addr("web")))
	line("LLM", fmt.Sprintf(`curl -N %s/v1/chat/completions -d '{"model": "mock", "stream": true, "messages": []}'`, addr("web")))
	line("TCP", fmt.Sprintf("nc %s %s", tcpHost, tcpPort))
	line("dashboard", fmt.Sprintf("http://%s/", addr("admin")))
	line("metrics", fmt.Sprintf("curl %s/metrics", addr("admin")))
	_, _ = fmt.Fprintf(&b, "\n  database   %s (%s)\n", d.database(), kept)
	return b.String()
}
