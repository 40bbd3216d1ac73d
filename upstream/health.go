package upstream

// health is the state of an active check. It is pure: results of probes in, changes out.
type health struct {
	rise, fall int
	probed     bool // at least one result is known
	down       bool
	streak     int // results in a row that contradict the state
	silence    int // probes in a row during which nothing was received from the endpoint
}

// observe records the result of a probe and reports whether the state has changed. silent says that nothing was
// received from the endpoint meanwhile.
func (h *health) observe(ok, silent bool) bool {
	if h.silence++; !silent {
		h.silence = 0
	}
	first := !h.probed
	h.probed = true
	if ok != h.down { // the result confirms the state
		h.streak = 0
		return false
	}
	h.streak++
	needed := h.fall
	if h.down {
		needed = h.rise
	}
	if !first && h.streak < needed {
		return false
	}
	h.down = !h.down
	h.streak = 0
	return true
}
