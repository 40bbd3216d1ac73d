package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/proc"
	"github.com/headpond/headpond/bench/internal/report"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/bench/internal/suite"
)

// defaultLoops is the gateway's default number of loops.
func defaultLoops() int { return max(1, runtime.NumCPU()/2) }

// measure runs the suites and writes the reports. After an interrupt it reports what is complete.
func measure(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	// A generator and a backend each hold a thread in raw system calls that Go's scheduler does not see.
	runtime.GOMAXPROCS(runtime.NumCPU() + load.Threads())
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	tools := peers.Find()
	res, err := results(ctx, o, tools)
	if err != nil {
		return err
	}
	swept, err := proc.Sweep()
	for _, line := range swept {
		_, _ = fmt.Fprintln(stderr, line)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "warning:", err)
	}
	group, err := proc.NewGroup()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Stop()) }()
	env := &suite.Env{Options: o.Options, Log: stderr, Starter: &peers.Starter{Group: group, Tools: tools, Headpond: o.Headpond, Self: o.Self, Loops: o.Loops}}
	groups, missing, err := env.Groups(o.suites)
	if err != nil {
		return err
	}
	maps.Copy(res.Versions, env.Versions)
	res.Missing = append(tools.Missing(), missing...)
	for _, line := range res.Missing {
		_, _ = fmt.Fprintln(stderr, line)
	}
	if res.Generator.Problem != "" {
		_, _ = fmt.Fprintln(stderr, "warning:", res.Generator.Problem)
	}
	r := &run.Runner{Results: res, Path: filepath.Join(o.out, "results.json"), Log: stderr, Terminal: o.terminal, Extras: !o.Quick, Others: func() func() float64 {
		before := group.Usage()
		return func() float64 { return group.Usage().Others(before) }
	}}
	if o.only != "" {
		if err := only(o.only, groups); err != nil {
			return err
		}
	}
	if o.peers != "" {
		wanted := strings.Split(o.peers, ",")
		if err := known(wanted, groups); err != nil {
			return err
		}
		r.Only = func(arm string) bool { return contains(wanted, arm) }
	}
	failed := r.Run(ctx, groups)
	if ctx.Err() != nil {
		failed = run.ErrInterrupted
	}
	if err := res.Save(r.Path); err != nil {
		return err
	}
	return errors.Join(failed, reports(o, res, stdout))
}

// reports writes the reports of the results so far.
func reports(o options, res *result.Results, stdout io.Writer) error {
	if err := report.Terminal(stdout, res); err != nil {
		return err
	}
	data, page := filepath.Join(o.out, "results.json"), filepath.Join(o.out, "report.html")
	if err := writePage(data, page); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stdout, "\n%s\n%s\n", data, page)
	return err
}

// errCase means that -only matches no case.
var errCase = errors.New("no such case")

// only removes cases that do not match pattern, except those that determine the rate of a matching case.
func only(pattern string, groups []run.Group) error {
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-only: %w: %w", errCase, err)
	}
	var names []string
	found := false
	for i := range groups {
		all := groups[i].Cases
		paced := map[string]bool{}
		for _, c := range all {
			names = append(names, c.Info.ID)
			if matches.MatchString(c.Info.ID) {
				paced[c.RateOf], found = true, true
			}
		}
		groups[i].Cases = slices.DeleteFunc(all, func(c run.Case) bool { return !paced[c.Info.ID] && !matches.MatchString(c.Info.ID) })
	}
	if !found {
		return fmt.Errorf("-only: %w as %q; there are %s", errCase, pattern, strings.Join(names, ", "))
	}
	return nil
}

// errPeer means that -peers names an unknown arm.
var errPeer = errors.New("no such arm")

// known returns an error if a wanted name is not the name of an arm.
func known(wanted []string, groups []run.Group) error {
	arms := map[string]bool{}
	for _, g := range groups {
		for _, a := range g.Arms {
			arms[a.Name] = true
		}
	}
	names := slices.Sorted(maps.Keys(arms))
	for _, w := range wanted {
		if !slices.ContainsFunc(names, func(arm string) bool { return contains([]string{w}, arm) }) {
			return fmt.Errorf("-peers: %w as %q; there are %s", errPeer, w, strings.Join(names, ", "))
		}
	}
	return nil
}

// contains reports whether an arm is wanted; "gateway" wants all of its engines.
func contains(wanted []string, arm string) bool {
	for _, w := range wanted {
		if arm == w || strings.HasPrefix(arm, w+"-") {
			return true
		}
	}
	return false
}

// results makes new results, or loads those of the run to resume.
func results(ctx context.Context, o options, tools peers.Tools) (*result.Results, error) {
	settings := result.Settings{Rounds: o.rounds, Seconds: o.Seconds, Quick: o.Quick, Loops: o.Loops}
	path := filepath.Join(o.out, "results.json")
	if o.resume {
		old, err := result.Load(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, err
		case old.Settings != settings:
			return nil, fmt.Errorf("%s was measured with other settings (%+v); resume with the same flags, or leave -resume out", path, old.Settings)
		case old.Versions["headpond"] != version(ctx, o.Headpond):
			return nil, fmt.Errorf("%s has rounds of headpond %s, and this is %s; leave -resume out", path, old.Versions["headpond"], version(ctx, o.Headpond))
		default:
			if c := o.command(); !strings.HasSuffix(old.Command, c) {
				old.Command += ", then " + c
			}
			return old, nil
		}
	}
	self, err := load.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("the generator's self-test: %w", err)
	}
	g := result.Generator{Threads: load.Threads(), KnownMicros: float64(self.Known) / 1e3, MeasuredMicros: float64(self.Measured) / 1e3, Omitted: self.Omitted}
	if err := self.Verdict(); err != nil {
		g.Problem = err.Error()
	}
	versions := tools.Versions()
	versions["go"] = runtime.Version()
	versions["headpond"] = version(ctx, o.Headpond)
	return &result.Results{
		Schema: result.Schema, Command: o.command(), Started: time.Now().UTC().Truncate(time.Second),
		Machine: machine(), Versions: versions, Settings: settings, Generator: g, Cases: []*result.Case{},
	}, nil
}
