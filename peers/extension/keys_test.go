package extension_test

import (
	"os"
	"testing"

	"github.com/headpond/headpond/internal/repotest"
	"github.com/headpond/headpond/peers/extension"
)

// TestDocumentedKeys compares the tables of docs/peers.md with the configuration.
func TestDocumentedKeys(t *testing.T) {
	const file = "docs/peers.md"
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	repotest.CheckKeys(t, map[string]string{file: string(text)}, []repotest.KeyTable{
		{File: file, Header: "key of `peers`", Of: []any{extension.Peers{}}},
		{File: file, Header: "key of a service", Of: []any{extension.Service{}}},
		{File: file, Header: "key of `per_peer`", Of: []any{extension.PerPeer{}}},
		{File: file, Header: "key of an upstream", Of: []any{extension.UpstreamKeys{}}},
		{File: file, Header: "key of a listener's `peers`", Of: []any{extension.Listener{}}},
	})
}
