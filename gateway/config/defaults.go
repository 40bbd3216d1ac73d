package config

import "reflect"

// fillDefaults gives every field that the file leaves out its default. It moves nothing, so that marks stay valid.
func (d *decoder) fillDefaults(cfg *Config) {
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		for _, k := range d.sections(l) {
			if k.name != string(l.Protocol) {
				continue
			}
			if k.value.IsNil() {
				k.value.Set(reflect.New(k.typ.Elem()))
			}
			l.Section = k.value.Interface()
		}
	}
	d.fillStruct(reflect.ValueOf(cfg).Elem())
	for i := range cfg.Upstreams {
		d.chooseSource(&cfg.Upstreams[i])
	}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if p := protocolOf(l.Protocol); p != nil && p.Default != nil {
			p.Default(l)
		}
	}
}

// chooseSource finds the section of "discover" that was written, the first if there are several.
func (d *decoder) chooseSource(u *Upstream) {
	if u.Discover == nil {
		return
	}
	for _, k := range d.sections(u.Discover) {
		if u.Discover.Section == nil && !k.value.IsNil() {
			u.Discover.Kind, u.Discover.Section = k.name, k.value.Interface()
		}
	}
	if kind := sourceOf(u.Discover.Kind); kind != nil && kind.Default != nil {
		kind.Default(u)
	}
}

// fillStruct applies the default tags, depth first.
func (d *decoder) fillStruct(v reflect.Value) {
	for _, k := range d.fields(v) {
		f, tag := k.value, k.tag
		_, written := d.marks[f.Addr().Interface()]
		switch {
		case isScalar(f.Type()):
			if text, ok := tag.Lookup("default"); ok && !written {
				_ = d.set(f, text, tag) // the schema's own test keeps the tags well-formed
			}
		case f.Kind() == reflect.Pointer && !f.IsNil():
			d.fillStruct(f.Elem())
		case f.Kind() == reflect.Struct:
			d.fillStruct(f)
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct && !isScalar(f.Type().Elem()):
			for j := range f.Len() {
				d.fillStruct(f.Index(j))
			}
		}
	}
}

// DefaultPool returns the limits that pools of upstreams of a protocol have by default.
func DefaultPool(protocol Protocol) Pool {
	if p := protocolOf(protocol); p != nil {
		return p.Pool
	}
	return Pool{}
}

// fillPool sets the limits whose defaults depend on the upstream's use.
func (d *decoder) fillPool(u *Upstream) {
	p, defaults := &u.Pool, DefaultPool(u.Protocol)
	if of := protocolOf(u.Protocol); of != nil && of.Limits != nil {
		of.Limits(u, &defaults)
	}
	if !d.written(&p.MaxSize) {
		p.MaxSize = max(defaults.MaxSize, p.MinIdle)
	}
	if !d.written(&p.IdleTimeout) {
		p.IdleTimeout = defaults.IdleTimeout
	}
	if !d.written(&p.MaxLifetime) {
		p.MaxLifetime = defaults.MaxLifetime
	}
	if p.MaxIdle == 0 {
		p.MaxIdle = p.MaxSize
	}
	if !d.written(&p.MaxWarm) {
		p.MaxWarm = p.MinIdle
		if of := protocolOf(u.Protocol); of != nil && of.MaxWarm != nil {
			p.MaxWarm = max(min(of.MaxWarm(p.MinIdle), p.MaxIdle), p.MinIdle)
		}
	}
	if !d.written(&p.CheckAfter) {
		p.CheckAfter = defaults.CheckAfter
	}
	if !d.written(&p.CheckInterval) {
		p.CheckInterval = defaults.CheckInterval
	}
}

// finish expands the listeners' "upstream" key. It comes last, because it moves lists and with them the fields that
// marks know.
func finish(cfg *Config) {
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if p := protocolOf(l.Protocol); p != nil && p.Finish != nil && l.Upstream != "" {
			p.Finish(cfg, l)
		}
	}
}
