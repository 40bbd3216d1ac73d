package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/proxyconf/haproxycfg"
	"github.com/headpond/headpond/internal/proxyconf/nginxconf"
)

// importProxy is importFile for the configuration of another proxy.
func importProxy(e env, kind, path, out, passwords string) int {
	result, err := convertProxy(kind, path, passwords)
	if err != nil {
		_, _ = fmt.Fprintln(e.stderr, err)
		return exitProblem
	}
	yaml := result.YAML(path)
	if err := writeNewFiles(e.stdout, result.Files, yaml, out); err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond import:", err)
		return exitProblem
	}
	for i, fates := range [][]proxyconf.Fate{{proxyconf.Missing, proxyconf.Differs}, {proxyconf.Itself}} {
		reports := result.Reports.Sorted(fates...)
		if i == 1 && len(reports) > 0 {
			_, _ = fmt.Fprintln(e.stderr, "Not needed here:")
		}
		for _, r := range reports {
			_, _ = fmt.Fprintln(e.stderr, r)
		}
	}
	for _, f := range result.Files {
		_, _ = fmt.Fprintf(e.stderr, "%s: the passwords of %s\n", f.Path, f.Of)
	}
	lost := len(result.Reports.Sorted(proxyconf.Missing))
	_, _ = fmt.Fprintf(e.stderr, "%s: %d differ, %d not supported, %d need nothing, all other directives are carried\n", path,
		len(result.Reports.Sorted(proxyconf.Differs)), lost, len(result.Reports.Sorted(proxyconf.Itself)))
	cfg, problems := config.Parse(cmp.Or(out, "stdout"), yaml)
	if cfg != nil {
		problems = append(problems, gateway.Check(cfg)...)
	}
	_, _ = fmt.Fprint(e.stderr, problems)
	switch {
	case problems.Err() != nil:
		_, _ = fmt.Fprintln(e.stderr, notReady)
		return exitProblem
	case lost > 0:
		return exitNoEqual
	}
	return exitOK
}

// notReady is said of a result that check refuses, most often because a file that it names is not there.
const notReady = "headpond import: the result does not pass check yet: mend what the lines above name, then run headpond check"

// convertProxy reads the configuration of another proxy and converts it.
func convertProxy(kind, path, passwords string) (*proxyconf.Gateway, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	full, err := filepath.Abs(path)
	if err == nil && passwords != "" {
		passwords, err = filepath.Abs(passwords)
	}
	if err != nil {
		return nil, err
	}
	if kind == "nginx" {
		return nginxconf.Convert(path, text, nginxconf.Options{Dir: filepath.Dir(full), Read: readBounded, Glob: filepath.Glob})
	}
	return haproxycfg.Convert(path, text, haproxycfg.Options{Dir: filepath.Dir(full), Read: readBounded, List: listFolder, Env: os.LookupEnv, Passwords: passwords})
}

// listFolder returns the names in a folder, sorted.
func listFolder(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// writeNewFiles writes files that only their owner can read, and the configuration. It replaces none.
func writeNewFiles(stdout io.Writer, files []proxyconf.File, yaml []byte, out string) error {
	for _, f := range append(slices.Clone(files), proxyconf.File{Path: out}) {
		if _, err := os.Lstat(f.Path); err == nil {
			return fmt.Errorf("%s exists, and is not replaced; remove it, or write elsewhere", f.Path)
		}
	}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
			return err
		}
		if err := writeNew(f.Path, f.Data, 0o600); err != nil {
			return err
		}
	}
	if out == "" {
		_, err := stdout.Write(yaml)
		return err
	}
	return writeNew(out, yaml, 0o644)
}
