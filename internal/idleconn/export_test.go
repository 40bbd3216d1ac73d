package idleconn

// Records is records for tests.
type Records struct{ r records }

func (r *Records) Pass(p []byte) { r.r.pass(p) }
func (r *Records) Whole() bool   { return r.r.whole() }
