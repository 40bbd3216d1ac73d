package repotest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// TestOtherPlatforms type-checks all modules that are released, and their tests, for platforms in the variable PLATFORMS, such as
// "darwin/arm64 windows/amd64", which `make test` sets; without it, for none. A platform with build tags, "linux/amd64/kube,storm", is for the
// tests that have make targets of their own, and those of all modules are checked. Nothing is compiled: SQLite alone would take a minute each.
// Function bodies are checked in our packages only.
func TestOtherPlatforms(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // all of it is garbage soon: half of the time went into its collection
	parsed := parsedFiles{fset: token.NewFileSet(), files: map[string]*ast.File{}}
	for _, platform := range strings.Fields(os.Getenv("PLATFORMS")) {
		t.Run(platform, func(t *testing.T) {
			system, arch, _ := strings.Cut(platform, "/")
			arch, tags, _ := strings.Cut(arch, "/")
			c := typeChecker{arch: arch, parsed: parsed, checked: map[string]*types.Package{"unsafe": types.Unsafe}}
			for _, p := range listPackages(t, system, arch, tags) {
				if err := c.check(p); err != nil {
					t.Errorf("%s: %v", p.ImportPath, err)
				}
			}
		})
	}
}

// listedPackage is a package, or its variant for a test, in the output of go list.
type listedPackage struct {
	ImportPath, Dir, ForTest string
	GoFiles                  []string
	ImportMap                map[string]string
	Module                   *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// listPackages returns the packages of the released modules, with tags those of all modules, their tests and all that these import, which
// comes first.
func listPackages(t *testing.T, system, arch, tags string) (list []listedPackage) {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-test", "-tags="+tags, "-json=ImportPath,Dir,ForTest,GoFiles,ImportMap,Module,Error",
		"./...", "./acme/...", "./cmd/routevet/...", "./http3/...", "./peers/...", "./route/ginroute/...", "./tracing/...")
	if tags != "" {
		cmd.Args = append(cmd.Args, "./bench/...", "./integration/...")
	}
	cmd.Dir, cmd.Stderr = root(t), os.Stderr
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := d.Decode(&p); err == io.EOF {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(p.ImportPath, ".test") && p.ImportPath != "unsafe" { // no generated main packages of tests
			list = append(list, p)
		}
	}
}

// parsedFiles are the files that were parsed, by name. Most are those of several platforms.
type parsedFiles struct {
	fset  *token.FileSet
	files map[string]*ast.File
}

// parse returns a file, with empty function bodies unless they are asked for.
func (p parsedFiles) parse(name string, bodies bool) (*ast.File, error) {
	if f := p.files[name]; f != nil {
		return f, nil
	}
	f, err := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil && !bodies {
			d.Body = new(ast.BlockStmt)
		}
	}
	p.files[name] = f
	return f, nil
}

// typeChecker checks the packages of one platform.
type typeChecker struct {
	arch    string
	parsed  parsedFiles
	checked map[string]*types.Package // by the import path of go list
}

// importer finds the packages that one package imports.
type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }

// check checks a package whose imports were checked.
func (c *typeChecker) check(p listedPackage) error {
	if p.Error != nil {
		return errors.New(p.Error.Err)
	}
	ours := p.Module != nil && p.Module.Main
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := c.parsed.parse(filepath.Join(p.Dir, name), ours)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	var found []error
	cfg := types.Config{
		// The variant of a package for another's test differs in what it imports, not in its own text.
		IgnoreFuncBodies: !ours || p.ForTest != "" && !strings.HasPrefix(p.ImportPath, p.ForTest),
		FakeImportC:      true,
		Sizes:            types.SizesFor("gc", c.arch),
		Error:            func(err error) { found = append(found, err) },
		Importer: importer(func(path string) (*types.Package, error) {
			if mapped, ok := p.ImportMap[path]; ok {
				path = mapped
			}
			if imported := c.checked[path]; imported != nil {
				return imported, nil
			}
			return nil, errors.New("was not listed")
		}),
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		cfg.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ")
	checked, _ := cfg.Check(path, c.parsed.fset, files, nil)
	c.checked[p.ImportPath] = checked
	return errors.Join(found...)
}
