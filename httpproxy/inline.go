package httpproxy

import "github.com/headpond/headpond/httpwire"

// checkForBody checks whether the whole body has arrived with the head and is not large. If so, the request is sent in
// one write, and can be sent again. Otherwise a second fiber sends the body as it arrives.
func (s *session) checkForBody() {
	x := &s.ex
	switch length := s.req.Length; {
	case length == httpwire.Chunked:
		if st := s.stream; st != nil && len(s.client.bytes()) <= bufferSize {
			if n, _, read := st.whole(); read && !s.tooLong(n) {
				x.inline, x.body = true, n
			}
		}
	case length <= 0:
		x.inline = true
	case length <= bufferSize && int64(len(s.client.bytes())-x.size) >= length:
		x.inline, x.body = true, length
	}
}

// takeInline returns the body that has arrived with the head, and counts it.
func (s *session) takeInline() []byte {
	x := &s.ex
	if !x.inline || x.body == 0 {
		return nil
	}
	x.result.BytesIn = x.body
	return s.client.bytes()[x.size : x.size+int(x.body)]
}

// sendBody sends the body that arrived with the head to a place on an HTTP/2 connection; the head has been sent. It never
// waits for the window. If the body does not fit, the upload sends it, from a reader by way of a fiber.
func (s *session) sendBody() error {
	x, body, p := &s.ex, s.takeInline(), s.place()
	lengthless := x.inline && s.req.Length == httpwire.Chunked // its end is to be sent, too
	switch {
	case len(body) == 0 && !lengthless:
		return nil
	case x.ahead.sent:
		x.ahead.bodyPending = !p.sendAtOnce(body)
		return nil
	}
	if !p.hasRoom(len(body)) {
		x.inline = false // the upload waits for the window while the answer is read
		return nil
	}
	if lengthless {
		return p.sendEnd(body, nil)
	}
	_, err := p.Write(body)
	return err
}

// dropInline frees the memory of the body that arrived with a stream's head. It is not needed for a retry.
func (s *session) dropInline() {
	if s.stream != nil && s.ex.inline && s.ex.body > 0 {
		s.client.drop()
		s.ex.body = 0
	}
}

// hasRoom reports whether the server's windows and the connection's buffer have space for n bytes of body.
func (st *h2Place) hasRoom(n int) bool {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(n) <= min(c.initial+st.window, c.window) && len(c.out) < maxOut
}
