package cli

import (
	"fmt"

	"github.com/headpond/headpond/gateway/protocols"
)

// apiKey is `headpond apikey NAME`.
func apiKey(e env, args []string) int {
	fs := flags("apikey", "NAME", "Makes an API key for a user. Prints the line for the file that \"keys\" of \"bearer_auth\" names, which has the key's hash, and on stderr the key, which is nowhere else: "+
		"headpond apikey ann >> keys. A user may have several keys.")
	args, code, ok := parse(e, fs, args, 1, "want the name of a user")
	if !ok {
		return code
	}
	key, line, err := protocols.NewAPIKey(args[0])
	if err != nil {
		_, _ = fmt.Fprintf(e.stderr, "headpond apikey: %q: %v\n", args[0], err)
		return exitUsage
	}
	_, _ = fmt.Fprintln(e.stdout, line)
	_, _ = fmt.Fprintln(e.stderr, key)
	return exitOK
}
