package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/pgbouncerini"
)

// exitNoEqual is the exit code of an import that has lost something.
const exitNoEqual = 3

// importFile is `headpond import FILE`.
func importFile(e env, args []string) int {
	fs := flags("import", "["+strings.Join(importKinds, "|")+"] FILE", "Prints a configuration that does what that of another program does, and on stderr each setting that is not in it, with what to do. "+
		"Without a program the name of FILE says it: pgbouncer.ini, haproxy.cfg, nginx.conf. "+
		"Exits with 3 if something has no equal, and with 1 if the file is broken or the result does not pass check.")
	out := fs.String("o", "", "write the configuration to this `file`, which must not exist, instead of stdout")
	passwords := fs.String("passwords", "", "write the passwords of connection strings, or of userlists, to files in this `directory`, which only their owner can read; without it the configuration takes those of PgBouncer from the environment")
	port := fs.Int("port", 0, "of PgBouncer: listen on this `port` instead of listen_port, to run beside it")
	args, code, ok := parse(e, fs, args, -1, "want one file")
	if !ok {
		return code
	}
	kind, path, why := importKind(args)
	switch {
	case why == "" && kind != "pgbouncer" && *port != 0:
		why = "-port is for PgBouncer, which has one port"
	case why == "" && kind != "pgbouncer":
		return importProxy(e, kind, path, *out, *passwords)
	}
	if why != "" {
		_, _ = fmt.Fprintln(e.stderr, "headpond import:", why)
		return exitUsage
	}
	if *port < 0 || *port > 65535 {
		_, _ = fmt.Fprintf(e.stderr, "headpond import: -port %d: want a port from 1 to 65535\n", *port)
		return exitUsage
	}
	result, err := convert(path, *port, *passwords)
	if err != nil {
		_, _ = fmt.Fprintln(e.stderr, err)
		return exitProblem
	}
	if err := writeImport(e.stdout, result, *out); err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond import:", err)
		return exitProblem
	}
	for _, r := range result.Reports {
		_, _ = fmt.Fprintln(e.stderr, r)
	}
	advise(e.stderr, result)
	count := result.Count
	_, _ = fmt.Fprintf(e.stderr, "%s: %d settings: %d differ, %d not supported, %d need nothing, all others are carried\n", path, result.Settings,
		count(pgbouncerini.Differs), count(pgbouncerini.Missing), count(pgbouncerini.Itself)+count(pgbouncerini.Ignored))
	if !importPasses(e.stderr, result, *out) {
		return exitProblem
	}
	if count(pgbouncerini.Missing) > 0 {
		return exitNoEqual
	}
	return exitOK
}

// importKinds are the programs whose configurations can be imported.
var importKinds = []string{"pgbouncer", "haproxy", "nginx"}

// importKind returns the program and the file that arguments name, or what is wrong with them.
func importKind(args []string) (kind, path, why string) {
	switch {
	case len(args) == 2 && slices.Contains(importKinds, args[0]):
		return args[0], args[1], ""
	case len(args) != 1:
		return "", "", "want one file, after the name of its program: " + strings.Join(importKinds, ", ")
	}
	for _, kind := range importKinds {
		if strings.Contains(filepath.Base(args[0]), kind) {
			return kind, args[0], ""
		}
	}
	switch filepath.Ext(args[0]) {
	case ".ini":
		return "pgbouncer", args[0], ""
	case ".cfg":
		return "haproxy", args[0], ""
	}
	return "", "", fmt.Sprintf("%s: whose configuration is this? Write the program before it: %s", args[0], strings.Join(importKinds, ", "))
}

// convert reads a pgbouncer.ini and converts it.
func convert(path string, port int, passwords string) (*pgbouncerini.Result, error) {
	file, err := pgbouncerini.Read(path, readBounded)
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if passwords != "" {
		if passwords, err = filepath.Abs(passwords); err != nil {
			return nil, err
		}
	}
	return pgbouncerini.Convert(file, pgbouncerini.Options{
		Port: port, Passwords: passwords, Dir: dir, Read: readBounded,
		Exists: func(path string) bool { _, err := os.Stat(path); return err == nil },
	})
}

// readBounded reads a file, up to a size that none of PgBouncer's has.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, fmt.Errorf("cannot read %q: %w", path, failed.Err)
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, pgbouncerini.MaxFileBytes+1))
}

// writeImport writes the passwords and the configuration. It replaces no file, and writes none if one of them exists.
func writeImport(stdout io.Writer, result *pgbouncerini.Result, out string) error {
	secrets := slices.DeleteFunc(slices.Clone(result.Passwords), func(p pgbouncerini.Password) bool { return p.File == "" || p.Value == "" })
	for _, p := range append(secrets, pgbouncerini.Password{File: out}) {
		if _, err := os.Lstat(p.File); err == nil {
			return fmt.Errorf("%s exists, and is not replaced; remove it, or write elsewhere", p.File)
		}
	}
	for _, p := range secrets {
		if err := os.MkdirAll(filepath.Dir(p.File), 0o700); err != nil {
			return err
		}
		if err := writeNew(p.File, []byte(p.Value+"\n"), 0o600); err != nil {
			return err
		}
	}
	if out == "" {
		_, err := stdout.Write(result.YAML)
		return err
	}
	return writeNew(out, result.YAML, 0o644)
}

// writeNew writes a file that does not exist yet.
func writeNew(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// advise says where the passwords of the configuration come from.
func advise(stderr io.Writer, result *pgbouncerini.Result) {
	for _, p := range result.Passwords {
		switch {
		case p.File != "" && p.Value != "":
			_, _ = fmt.Fprintf(stderr, "%s: the password of %s\n", p.File, p.Of)
		case p.File != "":
			_, _ = fmt.Fprintf(stderr, "%s: write the password of %s to this file\n", p.File, p.Of)
		default:
			_, _ = fmt.Fprintf(stderr, "%s: set this variable to the password of %s in the environment of headpond serve, or import with -passwords DIR\n", p.Variable, p.Of)
		}
	}
}

// importPasses checks the result as `headpond check` does, with a value for each password that is not there yet.
func importPasses(stderr io.Writer, result *pgbouncerini.Result, out string) bool {
	var later []string // and what stands for it
	for _, p := range result.Passwords {
		if p.Variable != "" {
			later = append(later, `"${`+p.Variable+`}"`, "later")
		} else if p.Value == "" {
			later = append(later, `"file:`+p.File+`"`, "later")
		}
	}
	cfg, problems := config.Parse(cmp.Or(out, "stdout"), []byte(strings.NewReplacer(later...).Replace(string(result.YAML))))
	if cfg != nil {
		problems = append(problems, gateway.Check(cfg)...)
	}
	_, _ = fmt.Fprint(stderr, problems)
	if problems.Err() != nil {
		_, _ = fmt.Fprintln(stderr, notReady)
		return false
	}
	return true
}
