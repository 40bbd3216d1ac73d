package extension

import (
	"fmt"
	"io"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/cli"
	"github.com/headpond/headpond/peers"
)

// actions are what `headpond peers` does.
const actions = "id FILE"

// Exit codes.
const (
	exitOK      = 0
	exitProblem = 1
	exitUsage   = 2
)

// command is `headpond peers`.
func command(stdout, stderr io.Writer, args []string) int {
	fs := cli.Flags("peers", actions, "Prints the peer ID of the node that FILE describes, by which others name it. Its key is made if there is none yet.")
	args, code, ok := cli.Parse(stdout, stderr, fs, args, 2, "want "+actions)
	if !ok {
		return code
	}
	if args[0] != "id" {
		_, _ = fmt.Fprintf(stderr, "headpond peers: unknown action %q; want %s\n", args[0], actions)
		return exitUsage
	}
	id, err := printedID(args[1], stderr)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "headpond:", err)
		return exitProblem
	}
	_, _ = fmt.Fprintln(stdout, id)
	return exitOK
}

// printedID is the peer ID of the node that a configuration file describes.
func printedID(file string, stderr io.Writer) (string, error) {
	cfg, problems := config.Load(file)
	if err := problems.Err(); err != nil {
		_, _ = fmt.Fprint(stderr, problems)
		return "", fmt.Errorf("%s cannot be used", file)
	}
	p := nodeOf(cfg)
	if p == nil {
		return "", fmt.Errorf("%s: has no section \"peers\"; add \"peers: {key: node.key}\"", file)
	}
	key, made, err := peers.LoadOrCreateKey(keyFile(cfg, p))
	if err != nil {
		return "", err
	}
	if made {
		_, _ = fmt.Fprintf(stderr, "headpond: made %s\n", keyFile(cfg, p))
	}
	return peers.IDOf(key)
}
