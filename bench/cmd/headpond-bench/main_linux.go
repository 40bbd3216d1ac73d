package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/headpond/headpond/bench/internal/arms"
	"github.com/headpond/headpond/bench/internal/backend"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/bench/internal/suite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once, and the kernel ends its children
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command runs the command line.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var err error
	switch {
	case len(args) == 4 && args[0] == "backend":
		err = backend.Main(ctx, backend.Kind(args[1]), args[2], args[3])
	case len(args) == 4 && args[0] == "arm":
		err = arms.Main(ctx, args[1], args[2], args[3])
	default:
		if code, ok := resultsCommand(args, stdout, stderr); ok {
			return code
		}
		return bench(ctx, args, stdout, stderr)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "headpond-bench:", err)
		return exitProblem
	}
	return exitOK
}

// options are the flags.
type options struct {
	suite.Options
	suites   []string
	peers    string
	only     string
	rounds   int
	out      string
	resume   bool
	terminal bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("headpond bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "%s\nSuites:\n%s  %-8s all of them\n\nFlags:\n", usage, suite.Names(), "all")
		fs.PrintDefaults()
	}
	fs.BoolVar(&o.Quick, "quick", false, "fewer cases, 9 rounds of 0.1 s: everything in five minutes")
	fs.StringVar(&o.peers, "peers", "", "`names` of the arms to measure, separated by commas, such as gateway-uring,haproxy (default: all)")
	fs.StringVar(&o.only, "only", "", "`pattern` of the cases to measure, such as '^W3c/simple' (default: all of the suites)")
	fs.IntVar(&o.rounds, "rounds", 0, "`number` of rounds of each arm (default: 9; some cases take fewer)")
	fs.Float64Var(&o.Seconds, "seconds", 0, "`length` of a round (default: 1, quick 0.1; some cases take longer)")
	fs.StringVar(&o.out, "out", "headpond-bench-results", "`folder` for results.json and report.html")
	fs.BoolVar(&o.resume, "resume", false, "take over the finished rounds of results.json in the folder")
	fs.IntVar(&o.Loops, "loops", 0, "`number` of loops of the gateway, threads of HAProxy, workers of nginx (default: half the processors)")
	fs.StringVar(&o.Headpond, "headpond", "", "`program` of the gateway (default: beside this one)")
	// Flags may stand before and after the names.
	for {
		if err := fs.Parse(args); err != nil {
			return o, err
		}
		if args = fs.Args(); len(args) == 0 {
			break
		}
		o.suites = append(o.suites, args[0])
		args = args[1:]
	}
	if len(o.suites) == 0 {
		fs.Usage()
		return o, errors.New("which suite?")
	}
	return o, o.defaults()
}

// command returns the command line that repeats this measurement, without options that depend on
// the machine.
func (o *options) command() string {
	c := []string{"headpond bench"}
	if o.Quick {
		c = append(c, "-quick")
	}
	c = append(c, fmt.Sprintf("-rounds %d -seconds %g", o.rounds, o.Seconds))
	if o.peers != "" {
		c = append(c, "-peers "+o.peers)
	}
	if o.only != "" {
		c = append(c, fmt.Sprintf("-only '%s'", o.only))
	}
	return strings.Join(append(c, o.suites...), " ")
}

// defaults sets the options that were not given.
func (o *options) defaults() error {
	seconds := 1.0
	if o.Quick {
		seconds = 0.1
	}
	if o.rounds <= 0 {
		o.rounds = 9 // the interval then tolerates one outlier on each side
	}
	if o.Seconds <= 0 {
		o.Seconds = seconds
	}
	if o.Loops <= 0 {
		o.Loops = defaultLoops()
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Self = self
	if o.Headpond == "" {
		o.Headpond = os.Getenv("HEADPOND_BENCH_GATEWAY")
	}
	if o.Headpond == "" {
		o.Headpond = filepath.Join(filepath.Dir(self), "headpond")
	}
	if o.Headpond, err = filepath.Abs(o.Headpond); err != nil { // it is started in another directory
		return err
	}
	if _, err := os.Stat(o.Headpond); err != nil {
		return fmt.Errorf("no gateway to measure: %w (make build, or -headpond PROGRAM)", err)
	}
	o.Source = sourceTree(filepath.Dir(self))
	info, err := os.Stderr.Stat()
	o.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	return nil
}

// sourceTree returns the source tree that contains dir or the working directory, or "".
func sourceTree(dir string) string {
	wd, err := os.Getwd()
	if err != nil {
		wd = dir
	}
	for _, d := range []string{dir, wd} {
		for ; d != filepath.Dir(d); d = filepath.Dir(d) {
			if _, err := os.Stat(filepath.Join(d, "bench", "cmd", "headpond-bench")); err == nil {
				return d
			}
		}
	}
	return ""
}

// resuming returns the arguments with which a run is resumed.
func resuming(args []string) []string {
	if slices.Contains(args, "-resume") || slices.Contains(args, "--resume") {
		return args
	}
	return append([]string{"-resume"}, args...)
}

// bench measures.
func bench(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "headpond bench:", err)
		return exitUsage
	}
	err = measure(ctx, o, stdout, stderr)
	switch {
	case errors.Is(err, run.ErrInterrupted):
		_, _ = fmt.Fprintf(stderr, "\nheadpond bench: interrupted; the finished rounds are in %s. To go on: headpond bench %s\n", o.out, strings.Join(resuming(args), " "))
		return exitInterrupted
	case errors.Is(err, errPeer) || errors.Is(err, errCase) || errors.Is(err, suite.ErrSuite):
		_, _ = fmt.Fprintln(stderr, "headpond bench:", err)
		return exitUsage
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "headpond bench:", err)
		return exitProblem
	}
	return exitOK
}
