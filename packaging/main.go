// Command packaging makes what `make dist` and `make image` add to the program: the folder with everything that belongs to an
// installation, packages for Debian and RPM, container images, and the Helm chart. It is a module outside of go.work, so that its dependencies
// have no part in the versions that the program is built with:
//
//	GOWORK=off go run -C packaging . files -program ../bin/headpond -licenses LIST -out ../dist/files
//	GOWORK=off go run -C packaging . package -files ../dist/files -arch amd64 -version v0.1.0 -out ../dist
//	GOWORK=off go run -C packaging . image -files ../dist/files -arch amd64 -version v0.1.0 -out ../dist
//	GOWORK=off go run -C packaging . chart -version v0.1.0 -out ../dist
//
// The same files give the same packages and images, byte for byte: all times in them are -time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// options are what the flags say.
type options struct {
	files    string    // the folder that "files" makes
	program  string    // files: the program for the target
	manual   string    // files: a program that runs here, for manual and completions; program if empty
	licenses string    // files: the output of go list, see licenses
	arch     string    // package, image: amd64 or arm64
	version  string    // package, image, chart: as git describe says
	time     time.Time // package, image, chart: of every file
	out      string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("want files, package, image or chart")
	}
	var o options
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	fs.StringVar(&o.files, "files", "", "the folder that `files` has made")
	fs.StringVar(&o.program, "program", "", "the program")
	fs.StringVar(&o.manual, "manual", "", "a program that runs on this machine, for the manual and the completions")
	fs.StringVar(&o.licenses, "licenses", "", "a file with a line for each linked package: module, version, folder of the module, folder of the package")
	fs.StringVar(&o.arch, "arch", "amd64", "amd64 or arm64")
	fs.StringVar(&o.version, "version", "", "the version, as git describe says")
	fs.StringVar(&o.out, "out", "", "the folder to write to")
	seconds := fs.Int64("time", 0, "the time of every file, in seconds since 1970")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	o.time = time.Unix(*seconds, 0).UTC()
	switch args[0] {
	case "files":
		return makeFiles(o)
	case "package":
		return makePackages(o)
	case "image":
		return makeImage(o)
	case "chart":
		return makeChart(o)
	}
	return fmt.Errorf("unknown action %q: want files, package, image or chart", args[0])
}
