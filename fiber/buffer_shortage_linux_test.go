//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"testing"

	"github.com/headpond/headpond/fiber"
)

// When very many connections have much to read at once, all get it, at a cost in proportion to their number though the loop has
// fewer buffers than that.
func TestManyReadersAtOnce(t *testing.T) {
	const many, each = 1500, 32 << 10
	loops(t, func(t *testing.T, e *fiber.Engine) {
		var once, all, over fiber.Group
		once.Add(many)
		all.Add(many)
		over.Add(1)
		defer over.Done()
		for range many {
			plain, c := plainPair(t, e)
			if _, err := plain.Write(make([]byte, each)); err != nil {
				t.Fatal(err)
			}
			fiber.Spawn(c, func() {
				buf := make([]byte, each)
				n, err := c.Read(buf[:each/2])
				once.Done()
				once.Wait()
				for n < each && err == nil {
					var m int
					m, err = c.Read(buf[n:])
					n += m
				}
				if err != nil {
					t.Errorf("%d bytes of %d, %v", n, each, err)
				}
				all.Done()
				over.Wait()
			})
		}
		once.Wait()
		before := e.Operations()
		all.Wait()
		if n := e.Operations() - before; n > 3*many {
			t.Errorf("%d operations for the rest on each of %d connections", n, many)
		}
	})
}
