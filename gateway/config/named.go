package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
)

// FilesOf returns path and the files that the configuration at path names and that take effect at a reload: passwords,
// certificates, user lists. Files that the gateway reads again by itself, such as tokens, are not among them. A file with
// problems names what can be understood of it. FilesOf reads the file at path and those that name others, and no pipes.
func FilesOf(path string) []string {
	names := []string{path}
	data, err := Path(path).ReadRegular()
	if err != nil || len(data) > maxFileBytes {
		return names
	}
	d := newDecoder(path)
	d.noted = &names
	if root := d.parse(data); root != nil {
		cfg := &Config{File: path, marks: d.marks}
		d.decode(root, cfg)
		d.fillDefaults(cfg) // also finds the sections of the listeners
		names = append(names, namedBy(cfg)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// namedBy returns the files that the files of listeners name.
func namedBy(cfg *Config) (names []string) {
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		p := protocolOf(l.Protocol)
		if p == nil || p.Named == nil || l.Section == nil {
			continue
		}
		for _, name := range p.Named(l) {
			names = append(names, string(name))
		}
	}
	return names
}

// newDecoder makes the decoder of a file called name.
func newDecoder(name string) *decoder {
	return &decoder{file: name, dir: filepath.Dir(name), lookup: os.LookupEnv, marks: map[any]Position{}, slots: map[any][]schemaKey{}}
}

// noteName stores the name of a file for FilesOf, and reports whether that is all that the decoder is for.
func (d *decoder) noteName(name string, tag reflect.StructTag) bool {
	if d.noted == nil {
		return false
	}
	if tag.Get("reread") == "" {
		*d.noted = append(*d.noted, name)
	}
	return true
}
