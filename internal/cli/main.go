// Package cli implements the headpond program: its commands, flags, signals and exit codes. There are two programs:
// cmd/headpond, and the released one, which also links in the modules with heavy dependencies.
package cli

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
)

// version is Main's argument, or Go's build information: the tag given to `go install`, or the commit.
var version string

// Exit codes. Command import has another one.
const (
	exitOK      = 0
	exitProblem = 1
	exitUsage   = 2
)

// command is one command of the program.
type command struct {
	name, args, about string
	run               func(env, []string) int
	words             func(args []string) []string // those that may follow args, for completion; nil: none, or a file if args has one
}

// env is where a command writes.
type env struct{ stdout, stderr io.Writer }

// commands is set in init, because help lists it.
var commands []command

func init() {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = info.Main.Version // "(devel)" if it is unknown
	}
	commands = []command{
		{"serve", "FILE", "run the gateway that FILE describes", serve, nil},
		{"demo", "", "run a gateway with sample backends, without a file", runDemo, nil},
		{"check", "FILE", "print every problem of a configuration file", check, nil},
		{"import", "[PROGRAM] FILE", "write a configuration that does what one of " + strings.Join(importKinds, ", ") + " does", importFile, nil},
		{"ctl", "ACTION", "ask or change a running gateway: " + strings.Join(ctlNames, ", "), ctl, ctlWords},
		{"top", "", "show what a running gateway does now, on a terminal", runTop, nil},
		{"apikey", "NAME", "make an API key for a user of an HTTP route", apiKey, nil},
		{"kube", "", "make the files with which a Kubernetes node reaches its API servers through a gateway", kube, nil},
		{"bench", "SUITE…", "measure the gateway and its peers on this machine", bench, nil},
		{"completion", "SHELL", "print a script for completion in " + strings.Join(shells, ", "), completion, firstOf(func() []string { return shells })},
		{"manpage", "", "print the manual page", manpage, nil},
		{"version", "", "print the version", printVersion, nil},
		{"help", "[COMMAND]", "print this, or about a command", help, firstOf(commandLines)},
	}
}

// Main runs the command named by the arguments of the process and returns the exit code: 0 success, 1 failure, 2 wrong
// usage. built is the version set by the linker; if it is empty, Go's build information is used.
func Main(built string) int {
	version = cmp.Or(built, version)
	return run(env{os.Stdout, os.Stderr}, os.Args[1:])
}

// Command is a command that a package adds to the program it is linked into.
type Command struct {
	Name, Args, About string   // of one line of help
	Words             []string // those that the first argument may be, for completion
	// Run executes the command with the arguments after its name, and returns the exit code.
	Run func(stdout, stderr io.Writer, args []string) int
}

// Register adds a command. Call it in init functions; it panics if the name is taken.
func Register(c Command) {
	if slices.ContainsFunc(commands, func(o command) bool { return o.name == c.Name }) {
		panic(fmt.Sprintf("cli: the command %q is registered twice", c.Name))
	}
	added := command{c.Name, c.Args, c.About, func(e env, args []string) int { return c.Run(e.stdout, e.stderr, args) }, nil}
	if len(c.Words) > 0 {
		added.words = firstOf(func() []string { return c.Words })
	}
	commands = slices.Insert(commands, len(commands)-builtInLast, added)
}

// builtInLast is the number of commands at the end of the list: completion, manpage, version and help.
const builtInLast = 4

// firstOf is command.words of a command whose first argument is one of list.
func firstOf(list func() []string) func([]string) []string {
	return func(args []string) []string {
		if len(args) > 0 {
			return nil
		}
		return list()
	}
}

// Flags makes the flag set of a command. args and about are for its help.
func Flags(name, args, about string) *flag.FlagSet { return flags(name, args, about) }

// Parse parses a command's flags, which may also follow arguments, and returns the arguments: exactly n or, with n < 0,
// at least one. If ok is false the command must not run, and code is the exit code. missing is the message for a wrong
// number of arguments.
func Parse(stdout, stderr io.Writer, fs *flag.FlagSet, args []string, n int, missing string) (rest []string, code int, ok bool) {
	return parse(env{stdout, stderr}, fs, args, n, missing)
}

// output remembers that something could not be written.
type output struct {
	io.Writer
	err error // the first one
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// run executes the command that args name. A command whose output is not written whole has not succeeded.
func run(e env, args []string) int {
	out := &output{Writer: e.stdout}
	e.stdout = out
	code := dispatch(e, args)
	if out.err != nil && code == exitOK {
		_, _ = fmt.Fprintln(e.stderr, "headpond: the output cannot be written:", out.err)
		return exitProblem
	}
	return code
}

// dispatch is run without its check of the output.
func dispatch(e env, args []string) int {
	if len(args) == 0 {
		usage(e.stderr)
		return exitUsage
	}
	name, args := args[0], args[1:]
	if name == "help" && len(args) > 0 {
		name, args = args[0], []string{"-h"}
	}
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-v", "-version", "--version":
		name = "version"
	}
	var names []string
	for _, c := range commands {
		if c.name == name {
			return c.run(e, args)
		}
		names = append(names, c.name)
	}
	_, _ = fmt.Fprintf(e.stderr, "headpond: unknown command %q", name)
	if hint := config.Closest(name, names); hint != "" {
		_, _ = fmt.Fprintf(e.stderr, "; did you mean %q?", hint)
	}
	_, _ = fmt.Fprintln(e.stderr, "\nRun \"headpond help\" for the commands.")
	return exitUsage
}

func usage(w io.Writer) {
	_, _ = fmt.Fprintf(w, "Headpond %s: a connection-pooling gateway for TCP, HTTP, PostgreSQL and SQLite.\n\nUsage: headpond COMMAND [FLAGS] [ARGUMENTS]\n\n", version)
	for _, c := range commands {
		_, _ = fmt.Fprintf(w, "  %-22s %s\n", c.name+" "+c.args, c.about)
	}
	_, _ = fmt.Fprintln(w, "\n\"headpond help COMMAND\" prints a command's flags. Exit codes: 0 done, 1 a problem, 2 wrong usage; 3 of import: something has no equal.")
}

func help(e env, _ []string) int {
	usage(e.stdout)
	return exitOK
}

func printVersion(e env, _ []string) int {
	_, _ = fmt.Fprintf(e.stdout, "headpond %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return exitOK
}

// flags makes the flag set of a command.
func flags(name, args, about string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.Usage = func() {
		line := "headpond " + name
		fs.VisitAll(func(*flag.Flag) { line = "headpond " + name + " [FLAGS]" }) // if there are flags
		_, _ = fmt.Fprintf(fs.Output(), "Usage: %s\n\n%s\n", strings.TrimSpace(line+" "+args), about)
		fs.PrintDefaults()
	}
	return fs
}

// parse parses the flags, which may also follow arguments, and returns the arguments: exactly n or, with n < 0, at
// least one. If ok is false the command must not run, and code is the exit code.
func parse(e env, fs *flag.FlagSet, args []string, n int, missing string) (rest []string, code int, ok bool) {
	if d, ok := e.stdout.(*describer); ok {
		d.flags = fs
		return nil, exitOK, false
	}
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	for ; err == nil && fs.NArg() > 0; err = fs.Parse(fs.Args()[1:]) {
		rest = append(rest, fs.Arg(0))
	}
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(e.stdout)
		fs.Usage()
		return nil, exitOK, false
	}
	if err == nil && (len(rest) == n || n < 0 && len(rest) > 0) {
		return rest, exitOK, true
	}
	if err == nil {
		err = errors.New(missing)
	}
	_, _ = fmt.Fprintf(e.stderr, "headpond %s: %v\n", fs.Name(), err)
	fs.SetOutput(e.stderr)
	fs.Usage()
	return nil, exitUsage, false
}
