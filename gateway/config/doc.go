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
// Durations are written 250ms, 30s, 5m, 1h30m; some also take "never". Addresses are host:port or unix:/path,
// endpoints also sqlite:/path. In every string value ${NAME} stands for an environment variable (an unset one is a problem),
// ${NAME:-default} has a default, and $${ is a plain ${. A password may be file:/path: the file's content without its last line break.
// Relative paths start at the folder of the configuration file. YAML anchors, aliases and merge keys (<<) work; top-level keys that start
// with x- are ignored, so that anchors have a place to live.
//
// # Limits
//
// A file has at most 1 MiB and, aliases followed, 100,000 values; a secret's file at most 64 KiB; a report at most 100 problems.
//
// # How it works
//
// The types in config.go are the schema: decode.go walks them by reflection beside the YAML nodes. Their tags are conf (the key; "-": not
// in the file), required, default, min and max (as they would be written), never (the value "never" stands for), type (address, endpoint,
// name: which check a string gets), maxlen (of a list), key (a mapping read as a list, its keys going to that field) and scalar (the field
// that a plain value instead of a mapping goes to). What involves more than one field is checked in validate*.go.
package config
