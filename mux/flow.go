package mux

// credit is the amount that one side may still send, in costs of Data frames.
type credit struct {
	sent, limit uint64
}

func (c *credit) left() uint64 { return c.limit - c.sent }

// window is the amount that one side lets the other send. Everything up to used has reached the
// application or was dropped; got-used is held in memory.
type window struct {
	got, used, limit, size uint64
	measured               uint64 // used, when the reader's speed was last looked at
	since                  int64  // when that was, ns
}

func newWindow(size uint64) window { return window{limit: size, size: size} }

// low reports whether three quarters of the window or less are open, so that
// the limit is raised in a batch that is written anyway.
func (w *window) low() bool { return w.limit-w.used <= w.size/4*3 }

// due reports whether half of the window or less is open: the limit must be raised now.
func (w *window) due() bool { return w.limit-w.used <= w.size/2 }
