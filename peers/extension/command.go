package extension

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/cli"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/tunnel"
)

// actions are the actions of `headpond peers`.
const actions = "id FILE | list | ping FILE ADDRESS | connect FILE SERVICE"

// actionNames are the first words of the actions.
var actionNames = []string{"id", "list", "ping", "connect"}

const about = `id prints the peer ID of the node that FILE describes, by which others name it. Its key is made if there is none yet.
list asks the gateway whose admin page is at the address for its peers, and the services that they offer.
ping connects to the node at ADDRESS, a multiaddress that ends in /p2p/ID, as a node without a name in the network of FILE.
connect connects standard input and output to SERVICE, PEERID/service or service, as the node that FILE describes.
"headpond demo -peers" runs three nodes on this machine.`

// Exit codes.
const (
	exitOK      = 0
	exitProblem = 1
	exitUsage   = 2
)

// command is `headpond peers`.
func command(stdout, stderr io.Writer, args []string) int {
	fs := cli.Flags("peers", actions, about)
	admin := fs.String("admin", cli.DefaultAdmin, "`address` of the admin page, for list: host:port or unix:/path")
	count := fs.Int("count", 4, "how `many` pings")
	patience := fs.Duration("timeout", 20*time.Second, "how `long` connecting may take")
	args, code, ok := cli.Parse(stdout, stderr, fs, args, -1, "want "+actions)
	if !ok {
		return code
	}
	c := &caller{stdout, stderr, *patience}
	var err error
	switch want := map[string]int{"id": 2, "list": 1, "ping": 3, "connect": 3}[args[0]]; {
	case want == 0:
		hint := ""
		if closest := config.Closest(args[0], actionNames); closest != "" {
			hint = fmt.Sprintf("; did you mean %q?", closest)
		} else if args[0] == "demo" {
			hint = `; did you mean "headpond demo -peers"?`
		}
		_, _ = fmt.Fprintf(stderr, "headpond peers: unknown action %q; want %s%s\n", args[0], actions, hint)
		return exitUsage
	case want != len(args):
		_, _ = fmt.Fprintf(stderr, "headpond peers: %s has %d arguments, want %d: %s\n", args[0], len(args)-1, want-1, actions)
		return exitUsage
	case args[0] == "id":
		err = c.id(args[1])
	case args[0] == "list":
		err = c.list(*admin)
	case args[0] == "ping":
		err = c.ping(args[1], args[2], *count)
	default:
		err = c.connect(args[1], args[2])
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "headpond:", err)
		return exitProblem
	}
	return exitOK
}

// caller runs one action.
type caller struct {
	stdout, stderr io.Writer
	patience       time.Duration
}

// load reads a configuration file that describes a node.
func (c *caller) load(file string) (*config.Config, *Peers, error) {
	cfg, problems := config.Load(file)
	if err := problems.Err(); err != nil {
		_, _ = fmt.Fprint(c.stderr, problems)
		return nil, nil, fmt.Errorf("%s cannot be used", file)
	}
	p := nodeOf(cfg)
	if p == nil {
		return nil, nil, fmt.Errorf("%s: has no section \"peers\"; add \"peers: {key: node.key}\"", file)
	}
	return cfg, p, nil
}

// key reads a node's key, or creates it.
func (c *caller) key(cfg *config.Config, p *Peers) (ed25519.PrivateKey, error) {
	key, made, err := peers.LoadOrCreateKey(keyFile(cfg, p))
	if err == nil && made {
		_, _ = fmt.Fprintf(c.stderr, "headpond: made %s\n", keyFile(cfg, p))
	}
	return key, err
}

// id prints the peer ID of the node in a configuration file.
func (c *caller) id(file string) error {
	cfg, p, err := c.load(file)
	if err != nil {
		return err
	}
	key, err := c.key(cfg, p)
	if err != nil {
		return err
	}
	id, err := peers.IDOf(key)
	if err == nil {
		_, err = fmt.Fprintln(c.stdout, id)
	}
	return err
}

// list prints the nodes that a running gateway knows.
func (c *caller) list(address string) error {
	body, err := cli.Get(address, "/api/v1/status")
	if err != nil {
		return err
	}
	var status struct {
		Node   []NodeStatus  `json:"node"`
		Peers  []PeerStatus  `json:"peers"`
		Offers []OfferStatus `json:"peer_services"`
	}
	if err := json.Unmarshal(body, &status); err != nil {
		return fmt.Errorf("the gateway at %s: %w", address, err)
	}
	if len(status.Node) == 0 {
		return fmt.Errorf("the gateway at %s is no node: its configuration has no section \"peers\"", address)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "NODE %s\n", status.Node[0].ID)
	for _, a := range status.Node[0].Addresses {
		_, _ = fmt.Fprintf(w, "  %s\n", a)
	}
	_, _ = fmt.Fprint(w, "\nPEER\tSTATE\tRTT\tPATH\n")
	for _, p := range status.Peers {
		_, state := p.state()
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", p.ID, state, p.rtt(), p.Path, p.LastError)
	}
	_, _ = fmt.Fprint(w, "\nSERVICE\tPEER\tLOAD\tCAPACITY\n")
	for _, o := range status.Offers {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", o.Service, o.Peer, o.Load, o.Capacity, o.LastError)
	}
	return w.Flush()
}

// node starts a node without a listener.
func (c *caller) node(p *Peers, key ed25519.PrivateKey, bootstrap []string) (*peers.Node, error) {
	cfg := peers.Config{
		Key: key, Listen: []string{}, Bootstrap: bootstrap, MDNS: p.MDNS, KeepAlive: p.KeepAlive, DialTimeout: p.DialTimeout,
		Logger: slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if !p.NetworkKey.IsZero() {
		var err error
		if cfg.NetworkKey, err = peers.ParseNetworkKey(p.NetworkKey.Reveal()); err != nil {
			return nil, fmt.Errorf("network_key: %w", err)
		}
	}
	return peers.New(cfg)
}

// ping prints the round trips to a node.
func (c *caller) ping(file, address string, count int) error {
	_, p, err := c.load(file)
	if err != nil {
		return err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	n, err := c.node(p, key, nil)
	if err != nil {
		return err
	}
	defer n.Close()
	for i := range count {
		ctx, cancel := context.WithTimeout(context.Background(), c.patience)
		rtt, path, err := n.Ping(ctx, address)
		cancel()
		if err != nil {
			return err
		}
		if i == 0 {
			_, _ = fmt.Fprintf(c.stdout, "connected by %s\n", path)
		}
		_, _ = fmt.Fprintf(c.stdout, "%d: %v\n", i+1, rtt.Round(time.Microsecond))
	}
	return nil
}

// connect connects standard input and output to a service.
func (c *caller) connect(file, service string) error {
	target, err := peers.ParseTarget(service)
	if err != nil {
		return err
	}
	cfg, p, err := c.load(file)
	if err != nil {
		return err
	}
	key, err := c.key(cfg, p)
	if err != nil {
		return err
	}
	n, err := c.node(p, key, texts(p.Bootstrap))
	if err != nil {
		return err
	}
	defer n.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	conn, err := c.dial(ctx, n, target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() { // it ends with the process, or with the end of its input
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.CloseWrite()
	}()
	_, err = io.Copy(c.stdout, conn)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// dial connects to a service. It waits until the service is found and the node is connected.
func (c *caller) dial(ctx context.Context, n *peers.Node, target peers.Target) (*tunnel.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	var once sync.Once
	for {
		conn, err := n.Dial(ctx, target)
		if err == nil {
			return conn, nil
		}
		once.Do(func() { _, _ = fmt.Fprintln(c.stderr, "headpond: waiting:", err) })
		select {
		case <-ctx.Done():
			return nil, err
		case <-again.C:
		}
	}
}
