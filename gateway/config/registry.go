package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/headpond/headpond/pool"
)

// A ListenerProtocol describes the configuration of one protocol's listeners. Functions may be nil.
type ListenerProtocol struct {
	Name Protocol
	// Section is a pointer to a struct, the type of Listener.Section: the keys under the protocol's name in a listener.
	Section any
	// Default sets defaults that tags cannot express. The tags have been applied.
	Default func(l *Listener)
	// Upstreams returns the fields that name the upstreams of a listener's sessions. nil: its key "upstream", which is
	// required then, unless there is NoUpstream.
	Upstreams func(l *Listener) []*string
	// Check reports problems of a listener, except those that every listener may have and unknown upstreams.
	Check func(c *Checker, l *Listener)
	// Finish expands the key "upstream" of a listener. Nothing is checked afterwards.
	Finish func(cfg *Config, l *Listener)
	// Named returns the files that the files of a listener name, and that are read with them. It opens no pipes. The listener is not
	// complete: it may have problems.
	Named func(l *Listener) []Path
	// Pool has the default limits of pools of upstreams that these listeners use; MaxSize is required. 0 of IdleTimeout and
	// CheckAfter means package pool's default. Limits, if not nil, changes them for one upstream.
	Pool   Pool
	Limits func(u *Upstream, defaults *Pool)
	// MaxWarm returns the default of "max_warm" for a "min_idle". nil: connections are reused, so the
	// number of connections kept ready is fixed.
	MaxWarm func(minIdle int) int
	// Keys are the protocol's own keys of the file and of upstreams, and endpoints that only it can
	// connect to.
	Keys *Extension
	// Uses reports whether an upstream that no listener uses is for this protocol. nil: unknown.
	Uses func(u *Upstream) bool

	NoUpstream     string // why its listeners have no "upstream", and what to write instead; empty: they have one
	ClientCerts    bool   // its listeners may ask for client certificates ("client_ca")
	ForwardHeaders bool   // "trusted_proxies" says whose headers are believed, also without a PROXY header
	ClientFirst    bool   // clients send the first bytes: on Linux a connection is accepted when they have come, or after about a second
	Datagrams      bool   // its listeners are UDP sockets, without the settings of TCP and TLS
	PlainHTTP      bool   // its listeners without TLS answer requests of HTTP, as authorities send them to check names
	TLSWithin      bool   // clients begin in clear and ask for TLS then
	// Beside reports whether a listener also has a UDP socket, at the same address. nil: none has.
	Beside func(l *Listener) bool
	// Optimistic says that a session may use a new connection of an upstream before the far end has answered, and that no other session gets
	// it. So tunnels do not wait for the far side, and nothing is gained by connections through them that are opened ahead of demand.
	Optimistic   bool
	EndsSessions bool // its sessions can be ended for what happens to their endpoint ("on_unhealthy", "rebalance")

	one bool // a listener has one upstream, by its key "upstream"
}

// An Extension adds keys to the top of the file and to upstreams. Fields that are nil add nothing.
type Extension struct {
	// File and Upstream are pointers to structs whose fields are more keys; PartOf returns their values in a file. A
	// list with a scope tag has named things, such as upstreams.
	File, Upstream any
	// Endpoints are prefixes of addresses that only this extension can connect to, with the check of the text behind
	// the prefix.
	Endpoints map[string]func(rest string) error
	// Files are prefixes of endpoints that are files of this machine. The check gets the path as written;
	// relative paths are resolved later, against the folder of the configuration file.
	Files map[string]func(path string) error
	// Check reports problems of the keys of File, CheckUpstream those of Upstream and the endpoints.
	Check         func(c *Checker)
	CheckUpstream func(c *Checker, u *Upstream)
	// Far reports whether another machine connects to an upstream's endpoints.
	Far func(u *Upstream) bool
	// Suffices reports whether the extension makes a file without listeners and upstreams useful.
	Suffices func(cfg *Config) bool
	// Certifies checks a listener whose certificates the extension obtains (ServerTLS.ACME). nil: it obtains none.
	Certifies func(c *Checker, l *Listener)
}

// The registered protocols and extensions, in order of registration, complete before the first file
// is read.
var (
	protocols  []*ListenerProtocol
	extensions []*Extension
)

// RegisterProtocol adds a listener protocol. Call it from an init function; it panics if p is invalid.
func RegisterProtocol(p ListenerProtocol) {
	if t := reflect.TypeOf(p.Section); p.Name == "" || t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: protocol %q needs a name, and a pointer to a struct as its section", p.Name))
	}
	if p.Upstreams == nil && p.NoUpstream == "" {
		p.Upstreams, p.one = func(l *Listener) []*string { return []*string{&l.Upstream} }, true
	}
	if p.Upstreams != nil && p.Pool.MaxSize == 0 {
		panic(fmt.Sprintf("config: protocol %q uses upstreams and has no limits for their pools: set Pool.MaxSize, or NoUpstream if its listeners have none", p.Name))
	}
	p.Pool.IdleTimeout = cmp.Or(p.Pool.IdleTimeout, pool.DefaultIdleTimeout)
	p.Pool.CheckAfter = cmp.Or(p.Pool.CheckAfter, pool.DefaultCheckAfter)
	if protocolOf(p.Name) != nil || keysOf(reflect.TypeFor[Listener]())[string(p.Name)] {
		panic(fmt.Sprintf("config: protocol %q is registered twice, or has the name of a key", p.Name))
	}
	protocols = append(protocols, &p)
	if p.Keys != nil {
		RegisterExtension(*p.Keys)
	}
}

// RegisterExtension adds an extension. Call it from an init function; it panics if e is invalid.
func RegisterExtension(e Extension) {
	for _, c := range []struct {
		part  any
		owner reflect.Type
	}{{e.File, reflect.TypeFor[Config]()}, {e.Upstream, reflect.TypeFor[Upstream]()}} {
		if c.part == nil {
			continue
		}
		for key := range keysOf(reflect.TypeOf(c.part).Elem()) {
			if keysOf(c.owner)[key] {
				panic(fmt.Sprintf("config: the key %q is registered twice", key))
			}
		}
	}
	extensions = append(extensions, &e)
}

// protocolOf returns the protocol of that name, nil if there is none.
func protocolOf(name Protocol) *ListenerProtocol {
	for _, p := range protocols {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Optimistic reports whether the upstream's protocol is.
func (u *Upstream) Optimistic() bool {
	p := protocolOf(u.Protocol)
	return p != nil && p.Optimistic
}

// Values lists the names that are registered.
func (Protocol) Values() []string {
	names := make([]string, len(protocols))
	for i, p := range protocols {
		names[i] = string(p.Name)
	}
	return names
}

// SectionOf returns a listener's section if it is a *T, else nil.
func SectionOf[T any](l *Listener) *T {
	section, _ := l.Section.(*T)
	return section
}

// PartOf returns the keys of type T that an Extension has added to owner, a *Config or *Upstream. They
// must not be changed. All are zero if owner was not read from a file.
func PartOf[T any](owner interface{ extended() []any }) *T {
	for _, p := range owner.extended() {
		if part, ok := p.(*T); ok {
			return part
		}
	}
	return new(T)
}

// Changeable are keys of upstreams that an extension has added, some of which a running upstream can change in place.
type Changeable interface {
	// Fixed returns a copy in which those keys have constant values, so that two copies can be compared.
	Fixed() any
}

// SameParts reports whether two upstreams have the same values for the keys that extensions have added, but for those
// that change in place.
func (u *Upstream) SameParts(other *Upstream) bool {
	return slices.EqualFunc(u.parts, other.parts, func(a, b any) bool { return reflect.DeepEqual(fixed(a), fixed(b)) })
}

func fixed(part any) any {
	if c, ok := part.(Changeable); ok {
		return c.Fixed()
	}
	return part
}

func (c *Config) extended() []any   { return c.parts }
func (u *Upstream) extended() []any { return u.parts }

// partTypes returns the types of the structs that add keys to owner.
func partTypes(owner reflect.Type) (types []reflect.Type) {
	for _, e := range extensions {
		part := map[reflect.Type]any{reflect.TypeFor[Config](): e.File, reflect.TypeFor[Upstream](): e.Upstream}[owner]
		if part != nil {
			types = append(types, reflect.TypeOf(part).Elem())
		}
	}
	return types
}

// Upstreams lists the upstreams that a listener's sessions use.
func (l *Listener) Upstreams() (names []string) {
	for _, name := range l.upstreamFields() {
		names = append(names, *name)
	}
	return names
}

func (l *Listener) upstreamFields() []*string {
	if p := protocolOf(l.Protocol); p != nil && p.Upstreams != nil && l.Section != nil {
		return p.Upstreams(l)
	}
	return nil
}

// Far reports whether another machine connects to an upstream's endpoints.
func (u *Upstream) Far() bool {
	return slices.ContainsFunc(extensions, func(e *Extension) bool { return e.Far != nil && e.Far(u) })
}

// FileAt returns the path if the only endpoint of an upstream is a file with this prefix, see Extension.Files. A nil
// upstream has none.
func (u *Upstream) FileAt(prefix string) (path string, ok bool) {
	if u == nil || len(u.Endpoints) != 1 {
		return "", false
	}
	path, ok = strings.CutPrefix(u.Endpoints[0].Address, prefix)
	return path, ok && path != ""
}

// IsFile reports whether an endpoint's address is a file of this machine, see Extension.Files.
func IsFile(address string) bool {
	return slices.ContainsFunc(extensions, func(e *Extension) bool {
		for prefix := range e.Files {
			if strings.HasPrefix(address, prefix) {
				return true
			}
		}
		return false
	})
}

// Counts returns the numbers of named objects in the file: "1 listener", "2 upstreams", and those of
// extensions.
func (c *Config) Counts() (counts []string) {
	v := reflect.ValueOf(c).Elem()
	for _, k := range append(keysIn(v.Type(), v), keysOfParts(c.parts)...) {
		kind := k.tag.Get("scope")
		if n := k.value; kind != "" && (n.Len() > 0 || kind == "listener" || kind == "upstream") {
			if n.Len() != 1 {
				kind += "s"
			}
			counts = append(counts, fmt.Sprintf("%d %s", n.Len(), kind))
		}
	}
	return counts
}
