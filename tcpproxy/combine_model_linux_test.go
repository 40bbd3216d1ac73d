package tcpproxy_test

import (
	"encoding/json"
	"strings"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/headpond/headpond/listener"
)

// combineLine is a line of the log.
type combineLine struct {
	Msg, Level, Listener, Reason, Client, Error, Upstream, Endpoint string
	Unlogged                                                        uint64 `json:"unlogged_before"`
	In                                                              int64  `json:"bytes_in"`
	Out                                                             int64  `json:"bytes_out"`
}

// clean is how a session ended that has no error.
const combineClean = "clean"

// combineReason returns the counter of an error in the access log.
func combineReason(text string) string {
	for _, known := range []struct{ part, reason string }{
		{"", combineClean},
		{"read from client", listener.ReasonClientGone}, {"write to client", listener.ReasonClientGone},
		{"read from upstream", listener.ReasonBackendGone}, {"write to upstream", listener.ReasonBackendGone},
		{"the client left while", listener.ReasonClientGone},
		{"no byte ", listener.ReasonTimeout}, {"the client has sent something and heard nothing", listener.ReasonTimeout},
		{"the client has closed its sending side", listener.ReasonTimeout}, {"no whole ", listener.ReasonTimeout},
		{"the time to drain is over", listener.ReasonDrained}, {"an operator has ended it", listener.ReasonKilled},
		{"upstream: the endpoint", listener.ReasonEndpointOut}, {"upstream: interrupted to balance", listener.ReasonRebalanced},
		{"upstream \"", listener.ReasonUpstreamUnavailable}, {"no route for", listener.ReasonUnknownRoute},
		{"TLS handshake with the client", listener.ReasonTLS}, {"ClientHello", listener.ReasonTLS}, {"the client does not begin with", listener.ReasonTLS},
	} {
		if text == known.part || known.part != "" && strings.HasPrefix(text, known.part) {
			return known.reason
		}
	}
	return "unknown: " + text
}

// checkArrival checks what a server knows of a session when it begins.
func (c *combined) checkArrival(s *combineServer, overTLS bool, header *proxyproto.Header) {
	r, l := c.r, c.l
	if s.upstream != c.upstream {
		r.failed(c, "it is at upstream %d", s.upstream.i)
		return
	}
	if want := l.kind == "pass" && c.tls || l.tlsTo(s.upstream) != nil; want != overTLS {
		r.failed(c, "TLS with the server is %t", overTLS)
	}
	switch {
	case header == nil:
		if l.cfg.SendProxy > 0 && !l.reloads {
			r.failed(c, "the server gets no PROXY header")
		}
	case header.SourceAddr.String() != c.source():
		r.failed(c, "the PROXY header names %v as the client", header.SourceAddr)
	case int(header.Version) != l.cfg.SendProxy && !l.reloads:
		r.failed(c, "the PROXY header has version %d", header.Version)
	}
}

// check compares what all have seen with the model, once all is over.
func (r *combineRound) check() {
	logged, counted := map[string]map[string]uint64{}, map[string]map[string]uint64{}
	for _, l := range r.listeners {
		logged[l.cfg.Listener.Name], counted[l.cfg.Listener.Name] = map[string]uint64{}, map[string]uint64{}
	}
	access := map[*combined][]combineLine{}
	for text := range strings.Lines(r.log.String()) {
		var line combineLine
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			r.t.Fatalf("%s: %v", text, err)
		}
		if line.Level == "ERROR" || strings.Contains(text, "panic") {
			r.t.Error(text)
		}
		if line.Reason != "" {
			logged[line.Listener][line.Reason] += 1 + line.Unlogged
		}
		found, ok := r.sources.Load(line.Client)
		if ok {
			found.(*combined).lines = append(found.(*combined).lines, strings.TrimSpace(text))
		}
		if line.Msg != "access" {
			continue
		}
		counted[line.Listener][combineReason(line.Error)]++
		if !ok {
			r.t.Errorf("the access log names an unknown client: %s", text)
			continue
		}
		access[found.(*combined)] = append(access[found.(*combined)], line)
	}
	r.sessions.Range(func(_, found any) bool {
		c := found.(*combined) //nolint:forcetypeassert // it has no others
		if c.server.by.Load() != nil {
			<-c.served
		}
		c.check(access[c])
		return true
	})
	for _, l := range r.listeners {
		l.checkCounters(logged[l.cfg.Listener.Name], counted[l.cfg.Listener.Name])
	}
}

// checkCounters compares the listener's counters with its log, in which each session has one line.
func (l *combineListener) checkCounters(logged, counted map[string]uint64) {
	t, st := l.r.t, l.proxy.Stats()
	if n := len(l.proxy.Sessions()); n > 0 || st.Active > 0 || st.Queued > 0 {
		t.Errorf("listener %d: %d sessions in the register, %d active, %d queued after the drain", l.i, n, st.Active, st.Queued)
	}
	sessions, refused := uint64(0), uint64(0)
	for _, n := range counted {
		sessions += n
	}
	for reason, n := range st.Errors {
		switch reason {
		case listener.ReasonDenied, listener.ReasonRejected, listener.ReasonSourceFull, listener.ReasonSourceRate, listener.ReasonProxyHeader:
			refused += n
		case listener.ReasonClientGone:
			n -= st.Gone
			fallthrough
		case listener.ReasonBackendGone, listener.ReasonTimeout, listener.ReasonTLS, listener.ReasonEndpointOut, listener.ReasonRebalanced, listener.ReasonUnknownRoute:
			if n != counted[reason] {
				t.Errorf("listener %d (%s): %d errors %q are counted, %d are in the access log", l.i, l, n, reason, counted[reason])
			}
		case listener.ReasonUpstreamUnavailable, listener.ReasonPoolExhausted:
			if all := st.Errors[listener.ReasonUpstreamUnavailable] + st.Errors[listener.ReasonPoolExhausted]; all != counted[listener.ReasonUpstreamUnavailable] {
				t.Errorf("listener %d (%s): %d clients without a connection are counted, %d are in the access log", l.i, l, all, counted[listener.ReasonUpstreamUnavailable])
			}
		case listener.ReasonDrained, listener.ReasonKilled:
		default:
			t.Errorf("listener %d (%s): errors %v", l.i, l, st.Errors)
		}
		if n := st.Errors[reason]; reason != listener.ReasonKilled && n != logged[reason] {
			t.Errorf("listener %d (%s): %d errors %q are counted, %d are in the log", l.i, l, n, reason, logged[reason])
		}
	}
	if most := sessions + refused + st.Gone; st.Accepted < most || st.Accepted > most+uint64(l.mayKill.Load())+st.Errors[listener.ReasonDrained] { //nolint:gosec // it is positive
		t.Errorf("listener %d (%s): accepted %d, with %d sessions, %d refused and %d gone", l.i, l, st.Accepted, sessions, refused, st.Gone)
	}
}

// check compares what the session's ends and the log say.
func (c *combined) check(access []combineLine) {
	r := c.r
	for _, v := range []*combineView{&c.client, &c.server} {
		if v.wrong != "" {
			r.failed(c, "wrong bytes: %s", v.wrong)
		}
		if strings.Contains(v.end+v.werr, "timeout") {
			r.failed(c, "it hangs: %s %s", v.end, v.werr)
		}
	}
	if c.vanishes == "" {
		c.checkEnds()
	}
	if len(access) > 1 {
		r.failed(c, "%d lines of the access log", len(access))
	}
	if len(access) == 0 {
		if c.server.by.Load() != nil || c.client.got > 0 && c.vanishes == "" {
			r.failed(c, "it has no line in the access log")
		}
		return
	}
	reason := combineReason(access[0].Error)
	if !c.mayEnd(reason) {
		r.failed(c, "it ends as %q", reason)
	}
	c.checkBytes(reason, access[0])
}

// checkEnds checks that the end of a stream is seen only by those who got all of it.
func (c *combined) checkEnds() {
	by := c.server.by.Load()
	if e := c.client.end; e == "eof" || e == "cut" && c.l.kind == "pass" && c.tls && c.down.hard {
		switch {
		case by == nil && c.client.got > 0:
			c.r.failed(c, "the client gets %d bytes from nowhere", c.client.got)
		case by == nil && c.upstream != nil && c.upstream.has("shut"):
		case by == nil && c.l.cfg.Listener.MaxConns > 0:
		case by == nil && c.l.draining.Load() && c.lasts():
		case by == nil:
			c.r.failed(c, "the client sees the end of a stream that no server has sent")
		case c.server.done() != "fin" && c.server.done() != "close" || c.client.got != c.down.size:
			c.r.failed(c, "the client sees the end of the server's stream after %d bytes of %d; the server did %q", c.client.got, c.down.size, c.server.done())
		}
	} else if e == "cut" {
		c.r.failed(c, "the client sees the end of the stream without the end of TLS")
	}
	overTLS := c.l.kind == "pass" && c.tls
	if e := c.server.end; e == "eof" || e == "cut" && overTLS && c.up.hard {
		if c.client.done() != "fin" && c.client.done() != "close" || c.server.got != c.up.size {
			c.r.failed(c, "the server sees the end of the client's stream after %d bytes of %d; the client did %q", c.server.got, c.up.size, c.client.done())
		}
	} else if e == "cut" && !(overTLS && c.client.done() == "close") {
		c.r.failed(c, "the server sees the end of the stream without the end of TLS")
	}
}

func (u *combineUpstream) has(kinds ...string) bool { return u.count(kinds...) > 0 }

func (u *combineUpstream) count(kinds ...string) (n int) {
	for _, s := range u.servers {
		for _, k := range kinds {
			if s.kind == k {
				n++
			}
		}
	}
	return n
}

// mayEnd reports whether the session may end for a reason.
func (c *combined) mayEnd(reason string) bool {
	u, by, client, server := c.upstream, c.server.by.Load(), c.client.done(), c.server.done()
	breaks := func(did string) bool { return did == "reset" || did == "close" }
	switch reason {
	case combineClean:
		if by == nil {
			return c.vanishes != "" || u.has("shut")
		}
		return client != "reset" && server != "reset" && client != "" && server != ""
	case listener.ReasonClientGone:
		return breaks(client) || c.vanishes != ""
	case listener.ReasonBackendGone:
		if by != nil {
			return breaks(server)
		}
		if c.vanishes != "" || c.l.kind != "pass" || !c.tls || c.l.cfg.NoRetry {
			return u.has("reset", "shut")
		}
		mustMove := !u.changes && !u.small && u.set.Ejection.Failures < 0 && u.count("reset", "shut", "refuse") < 3 && c.l.proxy.Stats().MovesRefused == 0
		return u.has("reset", "shut") && !mustMove
	case listener.ReasonTimeout:
		return c.l.times
	case listener.ReasonDrained:
		return c.lasts()
	case listener.ReasonKilled:
		return c.killed.Load()
	case listener.ReasonEndpointOut:
		return u != nil && u.changes
	case listener.ReasonRebalanced:
		return u.set.Rebalance.PerMinute > 0
	case listener.ReasonUpstreamUnavailable:
		return u != nil && (u.changes || u.small || u.count("reset", "shut") > 2 || u.set.Ejection.Failures >= 0 && u.has("reset", "shut", "refuse"))
	case listener.ReasonUnknownRoute:
		return u == nil && c.tls
	case listener.ReasonTLS:
		return c.vanishes != ""
	}
	return false
}

// checkBytes compares the counted bytes with those that the client has seen.
func (c *combined) checkBytes(reason string, line combineLine) {
	in, out := c.client.rawOut.Load(), c.client.rawIn.Load()
	both := reason == combineClean && c.client.done() == "fin" && c.client.end == "eof" && c.server.by.Load() != nil
	switch {
	case both && c.server.done() == "fin" && (line.In != in || line.Out != out):
		c.r.failed(c, "the access log has %d bytes in and %d out; the client sent %d and got %d", line.In, line.Out, in, out)
	case line.In > in || line.Out < out:
		c.r.failed(c, "the access log has %d bytes in and %d out; the client sent %d and got %d", line.In, line.Out, in, out)
	}
}
