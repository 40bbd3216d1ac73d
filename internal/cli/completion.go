package cli

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Completion is dynamic: the scripts of the shells ask the program, "headpond completion candidates WORD…", so that they never
// differ from it. The words are those after "headpond", the last one as far as it is written.

// shells are those with a script.
var shells = []string{"bash", "zsh", "fish"}

// filesWanted is the answer of candidates in place of words where the name of a file belongs.
const filesWanted = ":files"

const completionHelp = `Prints a script that completes commands, flags and actions. To load it in every new shell:

  bash   headpond completion bash > /etc/bash_completion.d/headpond
  zsh    headpond completion zsh > "${fpath[1]}/_headpond"
  fish   headpond completion fish > ~/.config/fish/completions/headpond.fish

The packages install all three.
`

// completion is `headpond completion SHELL`.
func completion(e env, args []string) int {
	if len(args) > 0 && args[0] == "candidates" {
		for _, line := range candidates(args[1:]) {
			_, _ = fmt.Fprintln(e.stdout, line)
		}
		return exitOK
	}
	fs := flags("completion", strings.Join(shells, "|"), completionHelp)
	args, code, ok := parse(e, fs, args, 1, "want one shell: "+strings.Join(shells, ", "))
	if !ok {
		return code
	}
	script := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[args[0]]
	if script == "" {
		_, _ = fmt.Fprintf(e.stderr, "headpond completion: no script for %q; want %s\n", args[0], strings.Join(shells, ", "))
		return exitUsage
	}
	_, _ = io.WriteString(e.stdout, script)
	return exitOK
}

// describer is the standard output of a command that is asked for its flags: parse stores them there, and the command does not run.
type describer struct {
	io.Writer
	flags *flag.FlagSet
}

// flagsOf returns the flags of a command. Those of bench belong to another program.
func flagsOf(c command) *flag.FlagSet {
	d := &describer{Writer: io.Discard, flags: flags(c.name, c.args, c.about+".")}
	if !slices.Contains([]string{"bench", "version", "help"}, c.name) {
		c.run(env{d, io.Discard}, []string{"-h"})
	}
	return d.flags
}

// candidates returns the words that may stand for the last of words, each with a tab and its description if it has one, or filesWanted.
func candidates(words []string) []string {
	if len(words) == 0 {
		return nil
	}
	before, last := words[:len(words)-1], words[len(words)-1]
	if len(before) == 0 {
		return startingWith(last, commandLines())
	}
	at := slices.IndexFunc(commands, func(c command) bool { return c.name == before[0] })
	if at < 0 {
		return nil
	}
	c := commands[at]
	args, value := split(flagsOf(c), before[1:])
	switch {
	case value != nil:
		return valuesOf(value)
	case strings.HasPrefix(last, "-"):
		return startingWith(last, flagLines(flagsOf(c)))
	case c.words != nil:
		return startingWith(last, c.words(args))
	case strings.Contains(c.args, "FILE") && len(args) <= strings.Count(c.args, " "):
		return []string{filesWanted}
	}
	return nil
}

// split returns the arguments among words that are no flags, and the flag whose value follows them, nil if none.
func split(fs *flag.FlagSet, words []string) (args []string, value *flag.Flag) {
	for _, word := range words {
		switch {
		case value != nil:
			value = nil
		case strings.HasPrefix(word, "-") && !strings.Contains(word, "="):
			if f := fs.Lookup(strings.TrimLeft(word, "-")); f != nil && !isSwitch(f) {
				value = f
			}
		case !strings.HasPrefix(word, "-"):
			args = append(args, word)
		}
	}
	return args, value
}

// isSwitch reports whether a flag takes no value.
func isSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// valuesOf returns filesWanted for a flag that names a file.
func valuesOf(f *flag.Flag) []string {
	switch name, _ := flag.UnquoteUsage(f); name {
	case "file", "folder", "directory", "program":
		return []string{filesWanted}
	}
	return nil
}

// startingWith returns the lines that begin with prefix.
func startingWith(prefix string, lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.HasPrefix(line, prefix) })
}

func commandLines() (lines []string) {
	for _, c := range commands {
		lines = append(lines, c.name+"\t"+c.about)
	}
	return lines
}

func flagLines(fs *flag.FlagSet) (lines []string) {
	fs.VisitAll(func(f *flag.Flag) {
		_, about := flag.UnquoteUsage(f)
		lines = append(lines, "-"+f.Name+"\t"+strings.Join(strings.Fields(about), " "))
	})
	return lines
}

const bashScript = `# bash completion for headpond
_headpond() {
	local line
	COMPREPLY=()
	while IFS= read -r line; do
		case $line in
		:files) compopt -o default ;;
		?*) COMPREPLY+=("${line%%$'\t'*}") ;;
		esac
	done < <("${COMP_WORDS[0]}" completion candidates "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _headpond headpond
`

const zshScript = `#compdef headpond
# zsh completion for headpond
_headpond() {
	local line
	local -a found
	for line in "${(@f)$("${words[1]}" completion candidates "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
		case $line in
		:files) _files; return ;;
		*$'\t'*) found+=("${line%%$'\t'*}:${line#*$'\t'}") ;;
		?*) found+=("$line") ;;
		esac
	done
	_describe headpond found
}
if [[ ${funcstack[1]} = _headpond ]]; then
	_headpond "$@"
else
	compdef _headpond headpond
fi
`

const fishScript = `# fish completion for headpond
function __headpond_candidates
	set -l words (commandline -opc)
	set -l last (commandline -ct)
	set -l found ($words[1] completion candidates $words[2..-1] "$last" 2>/dev/null)
	if test "$found" = :files
		__fish_complete_path "$last"
	else
		printf '%s\n' $found
	end
end
complete -c headpond -f -a '(__headpond_candidates)'
`
