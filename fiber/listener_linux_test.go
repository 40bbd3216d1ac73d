//go:build amd64 || arm64

package fiber_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// A listener whose socket another process still uses does not wake its loop after Close.
func TestClosedListenerIsNotWoken(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*fiber.Listener).File()
		if err != nil {
			t.Fatal(err)
		}
		heir, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		defer heir.Close()
		_ = f.Close()
		_ = l.Close()
		e.Timers() // a trip to the loop: it has closed it
		before := e.Stats().Ticks
		for range 100 {
			c, err := net.Dial("tcp", heir.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			s, err := heir.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Close(), s.Close()
		}
		if n := e.Stats().Ticks - before; n > 10 {
			t.Errorf("%d ticks for 100 connections of another listener", n)
		}
	})
}

// An abstract address is no file.
func TestAbstractListenerRemovesNoFile(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		t.Chdir(t.TempDir())
		name := "@" + filepath.Base(t.TempDir()) + string(e.Kind())
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := e.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		_ = e.Close()
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	})
}
