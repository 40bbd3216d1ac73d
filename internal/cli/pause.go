package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// pauseUse describes the arguments of `headpond ctl pause` and `ctl resume`.
const pauseUse = "pause|resume UPSTREAM"

// pauseFlags are the flags of `ctl pause`.
type pauseFlags struct {
	limit, wait time.Duration
	given       []string
}

// Defaults of pauseFlags: a restart of a large database takes minutes, and most transactions end within seconds.
const (
	defaultPause     = 5 * time.Minute
	defaultPauseWait = 30 * time.Second
)

func definePauseFlags(fs *flag.FlagSet) *pauseFlags {
	p := &pauseFlags{limit: defaultPause, wait: defaultPauseWait}
	duration := func(name, usage string, to *time.Duration, least time.Duration) {
		fs.Func(name, usage, func(text string) error {
			d, err := time.ParseDuration(text)
			if err != nil || d < least || d > admin.MaxPause {
				return fmt.Errorf("want a duration from %v to %v, such as 90s or 10m", least, admin.MaxPause)
			}
			*to, p.given = d, append(p.given, name)
			return nil
		})
	}
	duration("for", "with pause: the `duration`, unless resume ends it; 5m by default", &p.limit, time.Second)
	duration("wait", "with pause: the `duration` to wait until no connection is in use, 30s by default, 0s not at all", &p.wait, 0)
	return p
}

// misused returns what is wrong with the arguments of an action, "" if nothing is.
func (p *pauseFlags) misused(action string, rest []string) string {
	switch {
	case len(p.given) > 0 && action != "pause":
		return fmt.Sprintf("-%s is for pause only", p.given[0])
	case slices.Contains([]string{"pause", "resume"}, action) && len(rest) != 1:
		return action + " wants UPSTREAM"
	}
	return ""
}

// post changes the pause of an upstream.
func post(address, path string, body admin.Pause) error {
	request, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return askChange(context.Background(), address, http.MethodPost, path, bytes.NewReader(request), "pauses no upstreams"+notLocal)
}

// ctlResume ends a pause.
func ctlResume(e env, address, name string) error {
	err := post(address, "/api/v1/resume", admin.Pause{Upstream: name})
	if err == nil {
		_, _ = fmt.Fprintf(e.stdout, "resumed upstream %s\n", name)
	}
	return err
}

// pausePoll is the time between two looks at the connections in use.
const pausePoll = 200 * time.Millisecond

// ctlPause pauses an upstream and waits until none of its connections is in use.
func ctlPause(e env, address, name string, p *pauseFlags) error {
	if err := post(address, "/api/v1/pause", admin.Pause{Upstream: name, For: p.limit.String()}); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(e.stdout, "paused upstream %s for %v, or until 'headpond ctl resume %s'\n", name, p.limit, name)
	shown := 0
	for end := time.Now().Add(p.wait); p.wait > 0; time.Sleep(pausePoll) {
		u, err := upstreamStatus(address, name)
		if err != nil {
			return err
		}
		waiting, open := u.Connections()
		switch {
		case u.PausedUntil == nil:
			return fmt.Errorf("upstream %s has been resumed", name)
		case open == 0:
			_, _ = fmt.Fprintf(e.stdout, "no connection is in use; sessions that wait: %d\n", waiting)
			return nil
		case !time.Now().Before(end):
			return fmt.Errorf("upstream %s stays paused, but connections are still in use: %d; 'headpond ctl clients -upstream %s' shows by whom", name, open, name)
		case open != shown:
			shown = open
			_, _ = fmt.Fprintf(e.stdout, "connections in use: %d, sessions that wait: %d\n", open, waiting)
		}
	}
	return nil
}

// upstreamStatus asks for the status of one upstream.
func upstreamStatus(address, name string) (admin.UpstreamStatus, error) {
	s, _, err := askStatus(address)
	if err != nil {
		return admin.UpstreamStatus{}, err
	}
	i := slices.IndexFunc(s.Upstreams, func(u admin.UpstreamStatus) bool { return u.Name == name })
	if i < 0 {
		return admin.UpstreamStatus{}, fmt.Errorf("upstream %s has been removed by a reload", name)
	}
	return s.Upstreams[i], nil
}
