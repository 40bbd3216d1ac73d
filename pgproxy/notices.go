package pgproxy

import (
	"time"

	"github.com/headpond/headpond/pgwire"
)

// loginNotices are the notices with which a server accompanied a login as a client's user, such as that the collations of the
// database are of another version. They are for the client whose own login waited for it.
type loginNotices struct {
	before []byte        // messages that came before the first ParameterStatus
	after  []byte        // the others
	at     time.Duration // when the login was complete, by clock
}

// maxLoginNotices bounds the notices of a login that are kept with its connection, in bytes. The rest reach nobody.
const maxLoginNotices = 4 << 10

// readNotice keeps a NoticeResponse of the login.
func (s *server) readNotice(size int) error {
	kept := 0
	if s.notices != nil {
		kept = len(s.notices.before) + len(s.notices.after)
	}
	if kept+headerSize+size > maxLoginNotices {
		return s.r.Skip()
	}
	body, err := s.r.Body()
	if err != nil {
		return err
	}
	if s.notices == nil {
		s.notices = new(loginNotices)
	}
	to := &s.notices.before
	if len(s.baseline) > 0 {
		to = &s.notices.after
	}
	*to = append(pgwire.AppendHeader(*to, pgwire.TypeNoticeResponse, size), body...)
	return nil
}

// takeNotices returns the notices of the connection's login if that was completed after asked, when the client's login began to
// wait for a connection. No other client gets them.
func (s *server) takeNotices(asked time.Duration) (n loginNotices) {
	if s.notices != nil && s.notices.at >= asked {
		n = *s.notices
	}
	s.notices = nil
	return n
}
