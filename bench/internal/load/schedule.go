package load

import "time"

// schedule computes when operations are due: at equal intervals, or at once if the rate is 0.
type schedule struct {
	rate   float64 // per second
	issued int64
}

// at is when the next operation is due.
func (s *schedule) at() time.Duration {
	if s.rate == 0 {
		return 0
	}
	return time.Duration(float64(s.issued) / s.rate * float64(time.Second))
}

// next returns when the next operation was due if that is not after now. In a closed loop that is now.
func (s *schedule) next(now time.Duration) (time.Duration, bool) {
	if s.rate == 0 {
		return now, true
	}
	due := s.at()
	if due > now {
		return 0, false
	}
	s.issued++
	return due, true
}
