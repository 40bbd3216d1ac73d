package config

import (
	"fmt"
	"reflect"

	"github.com/headpond/headpond/upstream"
)

// A SourceKind is a way to discover the endpoints of upstreams, and its configuration. Functions may
// be nil.
type SourceKind struct {
	Name string // the key under "discover"
	// Section is a pointer to a struct, the type of Discover.Section. Scalar is the field for a plain
	// value in place of a mapping.
	Section any
	Scalar  string
	// Default sets defaults that tags cannot express. The tags have been applied.
	Default func(u *Upstream)
	// Check reports problems of an upstream with the section.
	Check func(c *Checker, u *Upstream)
	// Host returns the host name behind the endpoints' addresses, for health checks; "" = none.
	Host func(u *Upstream) string
	// New makes the source. An upstream whose section is unchanged keeps its source over reloads.
	New func(u *Upstream) (upstream.Source, error)
}

// sources is complete before the first file is read.
var sources []*SourceKind

// RegisterSource adds a kind of source. Call it from an init function; it panics if k is invalid.
func RegisterSource(k SourceKind) {
	t := reflect.TypeOf(k.Section)
	if k.Name == "" || k.New == nil || t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: source %q needs a name, New, and a pointer to a struct as its section", k.Name))
	}
	if sourceOf(k.Name) != nil {
		panic(fmt.Sprintf("config: source %q is registered twice", k.Name))
	}
	sources = append(sources, &k)
}

func (k *SourceKind) tag() reflect.StructTag {
	return reflect.StructTag(fmt.Sprintf("conf:%q scalar:%q", k.Name, k.Scalar))
}

// sourceOf returns the kind of that name, nil if there is none.
func sourceOf(name string) *SourceKind {
	for _, k := range sources {
		if k.Name == name {
			return k
		}
	}
	return nil
}

// Source makes the source of an upstream's endpoints; nil if they are in the file.
func (u *Upstream) Source() (upstream.Source, error) {
	if u.Discover == nil {
		return nil, nil //nolint:nilnil // there is no source, which is no error
	}
	return sourceOf(u.Discover.Kind).New(u)
}

// SourceHost returns the host name behind an upstream's endpoints, "" if there is none.
func (u *Upstream) SourceHost() string {
	if u.Discover == nil {
		return ""
	}
	if host := sourceOf(u.Discover.Kind).Host; host != nil {
		return host(u)
	}
	return ""
}

// DiscoverAs returns the section of an upstream's source if it is a *T, else nil.
func DiscoverAs[T any](u *Upstream) *T {
	if u.Discover == nil {
		return nil
	}
	section, _ := u.Discover.Section.(*T)
	return section
}

// checkSource refuses an upstream without endpoints, or with two sources of them.
func (d *decoder) checkSource(cfg *Config, u *Upstream) {
	if u.Discover == nil {
		if !d.written(&u.Endpoints) {
			d.report(d.mark(u, &u.Name), "\"endpoints\" is missing, or \"discover\"")
		}
		return
	}
	written := 0
	for _, k := range d.sections(u.Discover) {
		if !k.value.IsNil() {
			written++
		}
	}
	switch {
	case written != 1:
		d.report(d.mark(u.Discover, &u.Discover), "discover: want exactly one of %s, got %d", firstNames(sources), written)
	case d.written(&u.Endpoints):
		d.report(d.mark(&u.Discover), "discover: there are \"endpoints\" too; want one of both")
	case sourceOf(u.Discover.Kind).Check != nil:
		sourceOf(u.Discover.Kind).Check(&Checker{cfg, d}, u)
	}
}

func firstNames(kinds []*SourceKind) (text string) {
	for i, k := range kinds {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%q", k.Name)
	}
	return text
}
