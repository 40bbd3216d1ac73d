package cli

import (
	"io"
	"net/http"
)

// Run runs the command that args name, as Main does, and returns the exit code.
func Run(stdout, stderr io.Writer, args []string) int { return run(env{stdout, stderr}, args) }

// DefaultAdmin is the address of the admin page for commands that talk to a running gateway.
const DefaultAdmin = "127.0.0.1:9090"

// Get reads a page of the admin page at an address, host:port or unix:/path.
func Get(address, path string) ([]byte, error) {
	code, body, err := ask(address, http.MethodGet, path)
	if err == nil && code != http.StatusOK {
		err = unexpected(address, code, body)
	}
	return body, err
}
