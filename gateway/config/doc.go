// Package config reads Headpond's configuration: one strict YAML file.
//
//	cfg, problems := config.Load("headpond.yaml")
//	fmt.Print(problems)
//	if problems.Err() != nil {
//		os.Exit(1)
//	}
//	gateway.New(cfg, gateway.Options{})
//
// Load reports every problem of a file, not the first only, each as
//
//	headpond.yaml:12:5: upstream "pg": unknown key "max_sise"; did you mean "max_size"?
//
// # Values
//
// Durations are written 250ms, 30s, 5m, 1h30m; some also take "never". Addresses are host:port or
// unix:/path, endpoints also sqlite:/path. In every string value ${NAME} stands for an environment
// variable (an unset one is a problem), ${NAME:-default} has a default, and $${ is a plain ${. A
// password may be file:/path: the file's content without its last line break. Relative paths start at
// the folder of the configuration file. YAML anchors, aliases and merge keys (<<) work. Top-level keys
// that start with x- are ignored: they can hold anchors.
//
// # Limits
//
// A file has at most 1 MiB and, aliases followed, 100,000 values; a secret's file at most 64 KiB; a report at most 100 problems.
//
// # How it works
//
// The types in config.go are the schema: decode.go walks them by reflection beside the YAML nodes. Checks of several
// fields are in validate*.go. Tags of the fields are
//
//   - conf: the key; "-": not in the file
//   - required, default, min, max: as they would be written
//   - never: the meaning of the value "never"
//   - type: the check of a string: address, endpoint, name, mode or owner
//   - maxlen: of a list
//   - single: a list of one element may be written as the element
//   - key: a mapping is read as a list, its keys going to that field; names: a list of names is enough
//   - scalar: the field for a plain value in place of a mapping
//   - groups: ${1} in a string is no variable of the environment, but a group of a regular expression
//   - reread: the gateway reads the file again by itself, see FilesOf
//   - scope: a list of named things, whose problems begin with the name
//
// A string type with a set of values is an Enum; one with another format is Checked. Secret, Path and
// LogPath are described under Values.
//
// # Extensions
//
// Listener protocols are registered by RegisterProtocol, other keys by RegisterExtension, with the structs that they
// are read into. They are checked, shown and have defaults like all others. Importing package gateway registers
// Headpond's own.
package config
