package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v4"
)

// Enum is a string type with a fixed set of values.
type Enum interface{ Values() []string }

// Checked is a string type that checks its values; Check's error says what to write instead.
type Checked interface{ Check(text string) error }

// isScalar reports whether a field of type t is written as a single value.
func isScalar(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[Secret](), reflect.TypeFor[netip.Prefix]():
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return true
	}
	return false
}

// isBracketed reports whether a node is YAML's reading of [::1]:8080.
func isBracketed(n *yaml.Node) bool {
	return n.Kind == yaml.MappingNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.SequenceNode
}

// scalar decodes a single value.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, key string, tag reflect.StructTag) {
	switch {
	case isBracketed(n):
		d.report(at(n), "%s: put quotes around an address in brackets, as in %s", key, quotedAddress)
		return
	case n.Kind != yaml.ScalarNode:
		d.report(at(n), "%s: want a single value, got %s", key, describe(n))
		return
	}
	secret := v.Type() == reflect.TypeFor[Secret]()
	text, err := expand(n.Value, tag.Get("groups") != "", d.lookup)
	if err == nil && secret && text == "" && n.Value != "" && !strings.Contains(n.Value, ":-") {
		err = fmt.Errorf("is empty; write ${NAME:-} if it may be")
	}
	if err == nil {
		err = d.set(v, text, tag)
	}
	switch {
	case err == nil:
	case secret:
		d.report(at(n), "%s: %v", key, err)
	default:
		d.report(at(n), "%s: %q: %v", key, clip(withoutPassword(n.Value)), err)
	}
}

// set stores text in v; the error says what to write instead and does not repeat text.
func (d *decoder) set(v reflect.Value, text string, tag reflect.StructTag) error {
	switch p := v.Addr().Interface().(type) {
	case *Secret:
		return d.setSecret(p, text, tag)
	case *Path:
		return d.setPath(p, text, tag)
	case *LogPath:
		return d.setLogPath(p, text)
	case *netip.Prefix:
		return setPrefix(p, text)
	case *time.Duration:
		return setDuration(p, text, tag)
	case *bool:
		return setBool(p, text)
	case *int:
		return setInt(p, text, tag)
	case Enum:
		return setEnum(v, p, text)
	}
	if text == "" {
		return fmt.Errorf("is empty")
	}
	text, err := d.checkText(text, tag.Get("type"))
	if c, ok := v.Interface().(Checked); ok && err == nil {
		err = c.Check(text)
	}
	v.SetString(text)
	return err
}

func setEnum(v reflect.Value, e Enum, text string) error {
	if slices.Contains(e.Values(), text) {
		v.SetString(text)
		return nil
	}
	known := strings.Join(e.Values(), ", ")
	if hint := didYouMean(text, e.Values()); hint != "" {
		return fmt.Errorf("unknown value%s", hint)
	}
	return fmt.Errorf("unknown value; use one of %s", known)
}

func setBool(p *bool, text string) error {
	switch strings.ToLower(text) {
	case "true":
		*p = true
	case "false":
		*p = false
	case "yes", "on", "y":
		return fmt.Errorf("want true or false; did you mean true?")
	case "no", "off", "n":
		return fmt.Errorf("want true or false; did you mean false?")
	default:
		return fmt.Errorf("want true or false")
	}
	return nil
}

func setInt(p *int, text string, tag reflect.StructTag) error {
	low, high := tagInt(tag, "min"), tagInt(tag, "max")
	n, err := strconv.Atoi(strings.ReplaceAll(text, "_", ""))
	if err != nil {
		return fmt.Errorf("want a whole number from %d to %d", low, high)
	}
	if n < low || n > high {
		return fmt.Errorf("out of range; want %d to %d", low, high)
	}
	*p = n
	return nil
}

func tagInt(tag reflect.StructTag, name string) int {
	n, _ := strconv.Atoi(tag.Get(name)) // the schema's own test keeps the tags well-formed
	return n
}

func setDuration(p *time.Duration, text string, tag reflect.StructTag) error {
	never := tag.Get("never")
	if text == "never" && never != "" {
		*p, _ = time.ParseDuration(never)
		return nil
	}
	value, err := parseDuration(text)
	if err != nil {
		if never == "" || strings.HasSuffix(err.Error(), "?") {
			return err
		}
		return fmt.Errorf("%w, or never", err)
	}
	low, _ := time.ParseDuration(tag.Get("min"))
	high, _ := time.ParseDuration(tag.Get("max"))
	switch {
	case value >= low && value <= high:
		*p = value
		return nil
	case never != "" && value <= 0:
		return fmt.Errorf("write never, or a duration from %v to %v", low, high)
	}
	return fmt.Errorf("out of range; want %v to %v", low, high)
}

func setPrefix(p *netip.Prefix, text string) error {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		*p = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		return nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return fmt.Errorf("want an address or a network such as 10.0.0.0/8")
	}
	if prefix != prefix.Masked() {
		return fmt.Errorf("has bits set beyond its prefix length; did you mean %q?", prefix.Masked())
	}
	*p = prefix
	return nil
}

// setSecret takes the value itself, or with "file:" the file's content less one line break.
func (d *decoder) setSecret(p *Secret, text string, tag reflect.StructTag) error {
	name, isFile := strings.CutPrefix(text, "file:")
	if !isFile {
		*p = Secret{value: text}
		return nil
	}
	if name == "" {
		return fmt.Errorf("no path after \"file:\"")
	}
	if d.noteName(d.resolve(name), tag) {
		return nil
	}
	data, err := readFile(d.resolve(name), maxSecretBytes)
	if err != nil {
		return err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if value == "" {
		return fmt.Errorf("the file %q is empty", name)
	}
	*p = Secret{value: value, from: "file:" + d.resolve(name)}
	return nil
}

// setPath resolves a path and makes sure that the file can be read.
func (d *decoder) setPath(p *Path, text string, tag reflect.StructTag) error {
	if text == "" {
		return fmt.Errorf("is empty")
	}
	*p = Path(d.resolve(text))
	if d.noteName(string(*p), tag) {
		return nil
	}
	_, err := p.Read()
	return err
}

// setLogPath resolves the path of a file that need not exist.
func (d *decoder) setLogPath(p *LogPath, text string) error {
	switch {
	case text == "":
		return fmt.Errorf("is empty")
	case text == "-":
		*p = "-"
		return nil
	case strings.HasSuffix(text, "/"):
		return fmt.Errorf("want the name of a file, or - for standard output")
	}
	*p = LogPath(d.resolve(text))
	return nil
}

// maxNamedFileBytes bounds certificates and user lists.
const maxNamedFileBytes = 16 << 20

func (d *decoder) resolve(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(d.dir, name)
}
