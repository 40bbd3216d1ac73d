package cli

import (
	"fmt"
	"strings"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
)

// check is `headpond check FILE`.
func check(e env, args []string) int {
	fs := flags("check", "FILE", "Prints every problem of a configuration file, a line each, and exits with 1 if it could not be used. Binds and connects to nothing.")
	effective := fs.Bool("effective", false, "print the configuration in force, with every default, secrets left out")
	args, code, ok := parse(e, fs, args, 1, "want one configuration file")
	if !ok {
		return code
	}
	cfg, problems := config.Load(args[0])
	if cfg != nil {
		problems = append(problems, gateway.Check(cfg)...)
	}
	_, _ = fmt.Fprint(e.stderr, problems)
	if problems.Err() != nil {
		return exitProblem
	}
	if *effective {
		text, err := gateway.Effective(cfg).YAML()
		if err != nil {
			_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
			return exitProblem
		}
		_, _ = e.stdout.Write(text)
		return exitOK
	}
	_, _ = fmt.Fprintf(e.stdout, "%s: ok, %s\n", args[0], strings.Join(cfg.Counts(), ", "))
	return exitOK
}
