package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/headpond/headpond/gateway/admin"
)

// printStatus writes what a gateway says of itself: the counts, and below them whatever is wrong.
func printStatus(w io.Writer, s admin.Status) {
	state := "ready"
	if s.Draining {
		state = "draining"
	} else if !s.Ready {
		state = "not ready: " + strings.Join(s.NotReady, "; ")
	}
	up := time.Duration(s.UptimeSeconds) * time.Second
	_, _ = fmt.Fprintf(w, "headpond %s, %s, up %v, engine %s\n\n", s.Version, state, up, s.Engine)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "LISTENER\tPROTOCOL\tADDRESS\tSESSIONS\tMAX\tQUEUED\tACCEPTED\tREJECTED\tERRORS")
	for _, l := range s.Listeners {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", l.Name, l.Protocol, l.Address, l.Active, l.MaxConns, l.Queued, l.Accepted, l.Rejected, reasons(l.Errors))
	}
	_ = t.Flush()
	if len(s.Upstreams) > 0 {
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "\nUPSTREAM\tENDPOINT\tHEALTH\tIN USE\tMAX\tIDLE\tWAITING\tREUSE")
		for _, u := range s.Upstreams {
			for _, ep := range u.Endpoints {
				_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n",
					u.Name, ep.Address, health(ep), ep.Pool.InUse, ep.Pool.MaxSize, ep.Pool.Idle, ep.Pool.Waiting, reuse(ep.Pool))
			}
		}
		_ = t.Flush()
	}
	if len(s.Tunnels) > 0 {
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "\nTUNNEL\tSIDE\tSESSIONS\tSUSPENDED\tSTREAMS\tLOST\tPEERS")
		for _, n := range s.Tunnels {
			_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", n.Name, n.Side, n.Sessions, n.Suspended, n.Streams, n.Lost, strings.Join(n.Connected, ","))
		}
		_ = t.Flush()
	}
	if len(s.Retiring) > 0 {
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "\nREMOVED BY A RELOAD\tNAME\tSTILL ACTIVE\tFOR")
		for _, r := range s.Retiring {
			_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%v\n", r.Kind, r.Name, r.Active, s.Started.Add(up).Sub(r.Since).Truncate(time.Second))
		}
		_ = t.Flush()
	}
	if wrong := troubles(s); len(wrong) > 0 {
		_, _ = fmt.Fprintf(w, "\nTROUBLE\n%s\n", strings.Join(wrong, "\n"))
	}
}

// reasons are errors as reason=count, the names in order.
func reasons(errors map[string]uint64) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(errors)) {
		if n := errors[reason]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", reason, n))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ",")
}

// health is an endpoint's in one word. One that failed last, and was not taken out for it, is failing.
func health(ep admin.Endpoint) string {
	switch {
	case ep.Removed:
		return "removed"
	case !ep.Healthy:
		return "unhealthy"
	case ep.Ejected:
		return "ejected"
	case ep.Failures > 0:
		return "failing"
	}
	return "healthy"
}

// reuse is the part of the leases that found an open connection that had been used. TCP's, also what a tunnel brings, are used once.
func reuse(p admin.Pool) string {
	if p.Acquired == 0 || p.Protocol == "tcp" || p.Protocol == "tunnel" {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*p.ReuseRatio)
}

// troubles are sentences about a refused reload, about what is full, and about each endpoint and upstream that does not work.
func troubles(s admin.Status) (lines []string) {
	if e := s.Reloads.LastError; e != "" {
		lines = append(lines, "the last reload was refused, the old configuration keeps running: "+printable(e))
	}
	if e := s.Log.Error; e != "" {
		lines = append(lines, fmt.Sprintf("the log cannot be written, lines missing so far: %d: %s",
			s.Log.SlowReader+s.Log.DiskFull+s.Log.WriteFailed, printable(e)))
	}
	for _, l := range s.Listeners {
		if l.Active >= l.MaxConns && l.Queued > 0 {
			lines = append(lines, fmt.Sprintf("listener %s has no place left (max_conns %d), connections that wait: %d", l.Name, l.MaxConns, l.Queued))
		}
		if at := l.CertificateExpires; at != nil && at.Before(now(s)) {
			lines = append(lines, fmt.Sprintf("listener %s: its certificate has expired on %s", l.Name, at.Format(time.RFC3339)))
		}
	}
	for _, t := range s.Tunnels {
		if t.Side == admin.Connects && t.Sessions == 0 {
			lines = append(lines, fmt.Sprintf("tunnel %s is not connected%s", t.Name, since(s, t)))
		} else if t.LastError != "" {
			lines = append(lines, fmt.Sprintf("tunnel %s is not connected as it should be%s", t.Name, since(s, t)))
		}
	}
	for _, u := range s.Upstreams {
		if u.FailOpen {
			lines = append(lines, fmt.Sprintf("upstream %s: every endpoint is out, all of them are tried", u.Name))
		}
		for _, ep := range u.Endpoints {
			if p := ep.Pool; p.InUse >= p.MaxSize && p.Waiting > 0 {
				lines = append(lines, fmt.Sprintf("upstream %s, endpoint %s: every connection is in use (max_size %d), sessions that wait: %d", u.Name, ep.Address, p.MaxSize, p.Waiting))
			}
			if h := health(ep); h != "healthy" && ep.LastError != "" {
				lines = append(lines, fmt.Sprintf("upstream %s, endpoint %s is %s: %s", u.Name, ep.Address, h, printable(ep.LastError)))
			}
		}
	}
	return lines
}

// since says for how long, and why, a tunnel fails.
func since(s admin.Status, t admin.TunnelStatus) string {
	text := ""
	if t.FailingSince != nil {
		text = fmt.Sprintf(" since %s (%v)", t.FailingSince.Format(time.RFC3339), now(s).Sub(*t.FailingSince).Truncate(time.Second))
	}
	if t.LastError != "" {
		text += ": " + printable(t.LastError)
	}
	return text
}

// now is the time at the gateway, whose clock may differ from this one's.
func now(s admin.Status) time.Time {
	return s.Started.Add(time.Duration(s.UptimeSeconds * float64(time.Second)))
}

// printable keeps what a server said from being an order to the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return ' '
	}, s)
}
