package command_test

import (
	"fmt"
	"os"

	"github.com/headpond/headpond/gateway/command"
)

// A test of a program with protocols of its own: its example file has no mistakes.
func Example() {
	code := command.Run(os.Stdout, os.Stderr, "check", "../../examples/minimal.yaml")
	fmt.Println("exit code:", code)
	// Output:
	// ../../examples/minimal.yaml: ok, 1 listener, 1 upstream
	// exit code: 0
}
