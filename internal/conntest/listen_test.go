package conntest_test

import (
	"net"
	"runtime"
	"testing"
	"weak"

	"github.com/headpond/headpond/internal/conntest"
)

// TestListenerIsKept: the garbage collector closes a listener to which nobody refers.
func TestListenerIsKept(t *testing.T) {
	l := weak.Make(conntest.Listen(t).(*net.TCPListener))
	runtime.GC()
	if l.Value() == nil {
		t.Error("nobody refers to the listener")
	}
}
