package extension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/mockllm"
)

// The ports of the demo: of the API and of the admin page, as those of `headpond demo`.
const (
	demoAPI   = 8092
	demoAdmin = 9090
)

// tokenPause is the pause between two tokens of the mock language model.
const tokenPause = 100 * time.Millisecond

const hubText = `
admin: 127.0.0.1:%d
peers: {key: hub.key, listen: [/ip4/127.0.0.1/udp/0/quic-v1, /ip4/127.0.0.1/tcp/0], relay_for: anyone}
listeners:
  - {name: api, protocol: peers, listen: "127.0.0.1:%d"}
`

const workerText = `
peers: {key: %[1]s.key, listen: [%[2]s], bootstrap: [%[3]s], relays: [%[4]s], hole_punching: false}
services:
  llm: {upstream: llm, allow: [%[5]s], models: /v1/models}
upstreams:
  llm: {endpoints: ["%[6]s"], health: {http: /v1/models}}
`

// runDemo runs three nodes until a signal: one with a peers listener, and two with a mock language
// model each. The third node can be reached only through the first.
func runDemo(stdout, stderr io.Writer, version string, offset int) (err error) {
	dir, err := os.MkdirTemp("", "headpond-peers-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	d := &demo{dir: dir, out: stderr, version: version}
	defer d.close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := d.start(ctx, offset); err != nil {
		return err
	}
	api := fmt.Sprintf("http://127.0.0.1:%d/v1/service/llm/v1/chat/completions", demoAPI+offset)
	_, _ = fmt.Fprintf(stdout, `Three nodes run here; Ctrl-C ends them. Ask a language model beside the second, and one beside the third, which is reached through the first:

  curl -N %[1]s -d '{"model": "direct", "stream": true, "messages": []}'
  curl -N %[1]s -d '{"model": "relayed", "stream": true, "messages": []}'

The first one's dashboard is http://127.0.0.1:%[2]d/, and its table: headpond peers list -admin 127.0.0.1:%[2]d
`, api, demoAdmin+offset)
	<-ctx.Done()
	return nil
}

// demo is the running demo.
type demo struct {
	dir     string
	out     io.Writer
	version string
	closes  []func()
}

// close stops the demo's parts in reverse order.
func (d *demo) close() {
	for i := len(d.closes) - 1; i >= 0; i-- {
		d.closes[i]()
	}
}

// start starts the nodes, and waits until the first one knows both services and their models.
func (d *demo) start(ctx context.Context, offset int) error {
	hub, err := d.gateway("hub", fmt.Sprintf(hubText, demoAdmin+offset, demoAPI+offset))
	if err != nil {
		return err
	}
	self := nodeRow(hub)
	at := `"` + strings.Join(self.Addresses, `", "`) + `"`
	for _, w := range []struct{ name, listen, relays string }{{"direct", `/ip4/127.0.0.1/tcp/0`, ""}, {"relayed", "", at}} {
		model, err := d.model(w.name)
		if err != nil {
			return err
		}
		if _, err := d.gateway(w.name, fmt.Sprintf(workerText, w.name, w.listen, at, w.relays, self.ID, model)); err != nil {
			return err
		}
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		n := 0
		for _, a := range hub.Snapshot().Additions {
			rows, _ := a.Rows.([]OfferStatus)
			for _, offer := range rows {
				n += len(offer.Groups) // models of the services
			}
		}
		if n == 2 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
		}
	}
}

// nodeRow returns the row of a gateway's node.
func nodeRow(g *gateway.Gateway) (self NodeStatus) {
	for _, a := range g.Snapshot().Additions {
		if rows, ok := a.Rows.([]NodeStatus); ok && len(rows) == 1 {
			self = rows[0]
		}
	}
	return self
}

// gateway runs a gateway with a configuration.
func (d *demo) gateway(name, text string) (*gateway.Gateway, error) {
	cfg, problems := config.Parse(filepath.Join(d.dir, name+".yaml"), []byte(text))
	if err := problems.Err(); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(d.out, &slog.HandlerOptions{Level: slog.LevelWarn})).With("gateway", name)
	started := make(chan struct{})
	g, err := gateway.New(cfg, gateway.Options{Logger: log, Version: d.version, Started: func() { close(started) }})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Run(context.Background()) }()
	select {
	case err := <-ended:
		return nil, err
	case <-started:
	}
	d.closes = append(d.closes, func() {
		g.Close()
		<-ended //nolint:errcheck // the demo is over
	})
	return g, nil
}

// model serves a mock language model.
func (d *demo) model(name string) (address string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{ReadHeaderTimeout: headTimeout, Handler: &mockllm.Server{
		Models: []string{name}, Pause: tokenPause,
		Answer: func(r *mockllm.Request) iter.Seq2[string, error] {
			return mockllm.Say("I am the model " + r.Model + " and speak through two gateways .")
		},
	}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			_, _ = fmt.Fprintln(d.out, "headpond:", err)
		}
	}()
	d.closes = append(d.closes, func() {
		_ = server.Close()
		<-ended
	})
	return l.Addr().String(), nil
}
