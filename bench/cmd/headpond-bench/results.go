package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/headpond/headpond/bench/internal/compare"
	"github.com/headpond/headpond/bench/internal/report"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/tables"
)

// Exit codes.
const (
	exitOK          = 0
	exitProblem     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// usage is printed for -h and for wrong usage.
const usage = `Usage: headpond bench [FLAGS] SUITE…
       headpond bench compare OLD.json NEW.json       what became worse; exit code 1 if anything did
       headpond bench report RESULTS.json PAGE.html   the page again
       headpond bench tables FILE.md…                 the tables in Markdown files again

Measures Headpond and its peers on this machine, writes results.json and report.html, and prints the tables. To measure it needs Linux.
`

// resultsCommand runs a command that only reads results, which works on every system. ok is false for other commands.
func resultsCommand(args []string, stdout, stderr io.Writer) (code int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	var err error
	n := len(args) - 1
	switch name := args[0]; {
	case name == "compare" && n == 2:
		err = compareFiles(stdout, args[1], args[2])
	case name == "report" && n == 2:
		err = writePage(args[1], args[2])
	case name == "tables" && n > 0:
		err = updateFiles(args[1:])
	case name == "compare" || name == "report" || name == "tables":
		_, _ = fmt.Fprintf(stderr, "headpond bench %s: %d argument(s)\n%s", name, n, usage)
		return exitUsage, true
	default:
		return 0, false
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "headpond bench:", err)
		return exitProblem, true
	}
	return exitOK, true
}

// writePage makes the page of a results.json.
func writePage(data, path string) error {
	res, err := result.Load(data)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(report.HTML(f, res), f.Close())
}

// updateFiles updates the tables in Markdown files.
func updateFiles(paths []string) error {
	for _, path := range paths {
		text, err := tables.Update(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compareFiles prints the changes from one results.json to another.
func compareFiles(stdout io.Writer, before, after string) error {
	a, err := result.Load(before)
	if err != nil {
		return err
	}
	b, err := result.Load(after)
	if err != nil {
		return err
	}
	return compare.Print(stdout, a, b)
}
