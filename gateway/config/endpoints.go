package config

import (
	"bytes"
	"errors"
	"path/filepath"
	"reflect"

	yaml "go.yaml.in/yaml/v4"

	"github.com/headpond/headpond/upstream"
)

// EndpointsOf translates endpoints as a file has them.
func EndpointsOf(list []Endpoint) []upstream.Endpoint {
	out := make([]upstream.Endpoint, len(list))
	for i, e := range list {
		out[i] = upstream.Endpoint{Address: e.Address, Weight: e.Weight, Priority: e.Priority, Zone: e.Zone}
	}
	return out
}

// endpointFile is a file of endpoints, which may also be their list alone.
type endpointFile struct {
	Endpoints []Endpoint `conf:"endpoints" required:"true" scalar:"Address" maxlen:"1000"`
}

// LoadEndpoints reads a file of endpoints, in YAML or JSON: a list of addresses, or of mappings with "address" and the
// other keys of an upstream's endpoint, at the top or under the key "endpoints". Variables are not expanded.
func LoadEndpoints(path string) ([]Endpoint, Problems) {
	data, err := readFile(path, maxFileBytes)
	if err != nil {
		return nil, Problems{{Position: Position{File: path}, Message: err.Error()}}
	}
	return ParseEndpoints(path, data)
}

// ParseEndpoints is LoadEndpoints for the content of a file called name.
func ParseEndpoints(name string, data []byte) ([]Endpoint, Problems) {
	d := &decoder{
		file: name, dir: filepath.Dir(name), lookup: func(string) (string, bool) { return "", false },
		marks: map[any]Position{}, slots: map[any][]schemaKey{},
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, Problems{{Position: Position{File: name}, Message: "the file is empty; it needs at least one endpoint"}}
	}
	var file endpointFile
	v := reflect.ValueOf(&file).Elem()
	if root := d.parse(data); root != nil {
		if root.Kind == yaml.SequenceNode {
			d.value(root, v.Field(0), "endpoints", v.Type().Field(0).Tag)
		} else {
			d.object(root, v, "the file")
		}
		d.fillStruct(v)
		d.checkFound(file.Endpoints)
	}
	if problems := d.problems.bounded(); problems.Err() != nil {
		return nil, problems
	}
	return file.Endpoints, nil
}

// checkFound refuses duplicates, and addresses that only a configuration may have.
func (d *decoder) checkFound(list []Endpoint) {
	first := map[string]Position{}
	for i := range list {
		address, pos := list[i].Address, d.mark(&list[i].Address)
		if before, ok := first[address]; ok && address != "" {
			d.report(pos, "duplicate endpoint %q; it is already at line %d", address, before.Line)
		}
		first[address] = pos
		if err := checkListen(address); address != "" && (err != nil || IsFile(address)) {
			d.report(pos, "address: %q: %v", clip(address), errWantAddress)
		}
	}
}

var errWantAddress = errors.New("want host:port or unix:/path")

// CheckEndpoint returns the problem of an endpoint's address outside of a configuration: addresses that only
// configurations may have, such as files, are refused.
func CheckEndpoint(address string) error {
	if IsFile(address) {
		return errWantAddress
	}
	if err := checkListen(address); err != nil {
		return err
	}
	_, err := (&decoder{}).checkEndpoint(address)
	return err
}
