package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"strings"
)

// manpage is `headpond manpage`.
func manpage(e env, args []string) int {
	fs := flags("manpage", "", "Prints the manual page, headpond(1): every command with its flags, as help prints them.")
	if _, code, ok := parse(e, fs, args, 0, "takes no arguments"); !ok {
		return code
	}
	writeManual(e.stdout)
	return exitOK
}

// writeManual writes the manual page, in the macros of man(7).
func writeManual(w io.Writer) {
	_, _ = fmt.Fprintf(w, ".TH HEADPOND 1 \"\" %s \"User Commands\"\n", roff(fmt.Sprintf("%q", "headpond "+version)))
	_, _ = fmt.Fprint(w, manualBegin)
	for _, c := range commands {
		writeCommand(w, c)
	}
	_, _ = fmt.Fprint(w, manualEnd)
}

// writeCommand writes the section of one command: its use, what its help says, and its flags.
func writeCommand(w io.Writer, c command) {
	fs := flagsOf(c)
	var text bytes.Buffer
	fs.SetOutput(&text)
	fs.Usage()
	use, about, _ := strings.Cut(text.String(), "\n\n")
	var defaults bytes.Buffer
	fs.SetOutput(&defaults)
	fs.PrintDefaults()
	about = strings.Trim(strings.TrimSuffix(about, defaults.String()), "\n")
	_, _ = fmt.Fprintf(w, ".SS %s\n.B %s\n", roff(c.name), roff(strings.TrimPrefix(use, "Usage: ")))
	for paragraph := range strings.SplitSeq(about, "\n\n") {
		if strings.HasPrefix(paragraph, " ") { // a table
			_, _ = fmt.Fprintf(w, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
		} else {
			_, _ = fmt.Fprintf(w, ".PP\n%s\n", roff(paragraph))
		}
	}
	fs.VisitAll(func(f *flag.Flag) {
		value, what := flag.UnquoteUsage(f)
		_, _ = fmt.Fprintf(w, ".TP\n.B %s", roff("-"+f.Name))
		if value != "" {
			_, _ = fmt.Fprintf(w, " \\fI%s\\fR", roff(value))
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && !strings.Contains(what, "default") {
			what += " (default " + f.DefValue + ")"
		}
		_, _ = fmt.Fprintf(w, "\n%s\n", roff(what))
	})
}

// roff escapes text: a dot or an apostrophe at the beginning of a line would be a macro, and "-" a hyphen that cannot be searched for.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

const manualBegin = `.SH NAME
headpond \- connection\-pooling gateway for PostgreSQL, HTTP, TCP and SQLite
.SH SYNOPSIS
.B headpond
.I COMMAND
.RI [ FLAGS ]
.RI [ ARGUMENTS ]
.SH DESCRIPTION
Headpond keeps connections to servers open and leases them to clients. Its configuration is one YAML file;
.B headpond check
prints every mistake in it with file, line and column.
.SH COMMANDS
`

const manualEnd = `.SH SIGNALS
Those of
.BR "headpond serve" :
.TP
.B SIGTERM, SIGINT
Stop accepting, let sessions finish for
.IR drain_timeout ,
and exit. A second signal exits at once.
.TP
.B SIGHUP
Read the configuration file again. A file with a mistake is refused whole.
.TP
.B SIGUSR2
Start the program file again, which takes the listening sockets over; then drain. No client is refused.
.SH EXIT STATUS
0 done, 1 a problem, 2 wrong usage; 3 of
.BR import :
something has no equal.
.SH FILES
.TP
.I /etc/headpond/headpond.yaml
The configuration of the service that packages install.
.TP
.I /var/lib/headpond
What the service keeps: certificates, keys, SQLite files.
.SH SEE ALSO
https://github.com/headpond/headpond
`
