package kube

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/upstream"
)

// slice is an EndpointSlice of discovery.k8s.io/v1, with the fields that are used.
type slice struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	AddressType string     `json:"addressType"` // "IPv4", "IPv6" or "FQDN"
	Endpoints   []endpoint `json:"endpoints"`
	Ports       []port     `json:"ports"`
}

type endpoint struct {
	Addresses  []string `json:"addresses"` // all of one kind and interchangeable: the first is used
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	NodeName  string `json:"nodeName"`
	Zone      string `json:"zone"`
	TargetRef *struct {
		Name string `json:"name"`
	} `json:"targetRef"`
	Hints *struct {
		ForZones []struct {
			Name string `json:"name"`
		} `json:"forZones"`
	} `json:"hints"`
}

type port struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"` // "" = TCP
	Port     *int   `json:"port"`     // nil = all
}

// ready reports whether the endpoint is ready; as the API defines it, an unknown condition counts as ready.
func (e *endpoint) ready() bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// stopping reports whether an endpoint is terminating and still serves.
func (e *endpoint) stopping() bool {
	c := &e.Conditions
	return !e.ready() && c.Terminating != nil && *c.Terminating && c.Serving != nil && *c.Serving
}

// usable reports whether connections may go to the endpoint.
func (e *endpoint) usable() bool { return (e.ready() || e.stopping()) && len(e.Addresses) > 0 }

// pod returns the name of the endpoint's pod, "" if there is none.
func (e *endpoint) pod() string {
	if e.TargetRef == nil {
		return ""
	}
	return e.TargetRef.Name
}

// hintedFor reports whether a topology hint names the zone.
func (e *endpoint) hintedFor(zone string) bool {
	if e.Hints == nil {
		return false
	}
	for _, z := range e.Hints.ForZones {
		if z.Name == zone {
			return true
		}
	}
	return false
}

func (e *endpoint) hinted() bool { return e.Hints != nil && len(e.Hints.ForZones) > 0 }

// Kinds of endpoints, which become priorities if a zone is preferred.
const (
	readyHere = iota
	readyElsewhere
	stoppingHere
	stoppingElsewhere
	bootstrapped // used beside a set from the cache
)

// errNoSlices is the error for an empty list.
var errNoSlices = errors.New("it has no EndpointSlices; is there such a Service?")

// endpointsOf returns the set of all slices, in a fixed order.
func (s *Source) endpointsOf(all map[string]slice) ([]upstream.Endpoint, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("service %s: %w", s.service(), errNoSlices)
	}
	local, known := s.locality(all), podsOfIPv4(all)
	var set []upstream.Endpoint
	var without error // error of the last slice whose pods do not have the port; only those pods are left out
	out := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sl := all[name]
		if len(sl.Endpoints) == 0 {
			continue // a slice without endpoints may have no ports
		}
		port, err := s.portOf(sl.Ports)
		if err != nil {
			err = fmt.Errorf("service %s: EndpointSlice %s: %w", s.service(), name, err)
			if !errors.Is(err, errNoPort) {
				return nil, err
			}
			without = err
			out += len(sl.Endpoints)
			continue
		}
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			if !e.usable() {
				out++
				continue
			}
			if sl.AddressType == typeIPv6 && known[e.pod()] {
				continue
			}
			set = append(set, upstream.Endpoint{
				Address: hostPort(e.Addresses[0], port), Priority: s.kindOf(e, local), Zone: e.Zone, Metadata: metadataOf(e),
			})
		}
	}
	switch {
	case len(set) == 0 && without != nil:
		return nil, without
	case len(set) == 0:
		return nil, fmt.Errorf("service %s: no endpoint is ready, %d are not", s.service(), out)
	}
	return ordered(set), nil
}

// Address types of the slices of a dual-stack Service.
const (
	typeIPv4 = "IPv4"
	typeIPv6 = "IPv6"
)

// podsOfIPv4 returns the pods that have an IPv4 address. The pods of a dual-stack Service are also in its slices for
// IPv6, and are one endpoint each.
func podsOfIPv4(all map[string]slice) map[string]bool {
	pods := map[string]bool{}
	for _, sl := range all {
		for i := range sl.Endpoints {
			if e := &sl.Endpoints[i]; sl.AddressType == typeIPv4 && e.usable() && e.pod() != "" {
				pods[e.pod()] = true
			}
		}
	}
	return pods
}

// ordered sorts a set and removes duplicates: while the controller moves an endpoint between slices, both have it.
func ordered(set []upstream.Endpoint) []upstream.Endpoint {
	slices.SortStableFunc(set, func(a, b upstream.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Priority, b.Priority))
	})
	return slices.CompactFunc(set, func(a, b upstream.Endpoint) bool { return a.Address == b.Address })
}

// locality returns a function that reports whether an endpoint is in the preferred zone; nil if no zone is preferred.
// As in kube-proxy, hints count only if every ready endpoint has one.
func (s *Source) locality(all map[string]slice) func(*endpoint) bool {
	zone := s.cfg.PreferZone
	if zone == "" {
		return nil
	}
	hinted, ready := 0, 0
	for _, sl := range all {
		for i := range sl.Endpoints {
			if e := &sl.Endpoints[i]; e.ready() {
				ready++
				if e.hinted() {
					hinted++
				}
			}
		}
	}
	if hinted > 0 && hinted == ready {
		return func(e *endpoint) bool { return e.hintedFor(zone) }
	}
	return func(e *endpoint) bool { return e.Zone == zone }
}

// kindOf returns the kind, and so the priority, of an endpoint.
func (s *Source) kindOf(e *endpoint, local func(*endpoint) bool) int {
	here := local == nil || local(e)
	switch {
	case e.ready() && here:
		return readyHere
	case e.ready():
		return readyElsewhere
	case here:
		return stoppingHere
	}
	return stoppingElsewhere
}

func metadataOf(e *endpoint) map[string]string {
	m := map[string]string{}
	if e.NodeName != "" {
		m["node"] = e.NodeName
	}
	if e.pod() != "" {
		m["pod"] = e.pod()
	}
	if e.stopping() {
		m["state"] = "stopping"
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// errNoPort means that the pods of a slice do not have the port that is asked for.
var errNoPort = errors.New("it has no TCP port")

// portOf returns the configured port, or the only one.
func (s *Source) portOf(ports []port) (int, error) {
	var names []string
	var found []int
	for _, p := range ports {
		if p.Port == nil || p.Protocol != "" && p.Protocol != "TCP" {
			continue
		}
		number := strconv.Itoa(*p.Port)
		if want := s.cfg.Port; want == "" || want == p.Name || want == number {
			found = append(found, *p.Port)
		}
		names = append(names, strings.TrimPrefix(p.Name+" "+number, " "))
	}
	switch {
	case len(found) == 1 && found[0] > 0 && found[0] <= 65535:
		return found[0], nil
	case len(names) == 0:
		return 0, errNoPort
	case s.cfg.Port == "":
		return 0, fmt.Errorf("it has %d TCP ports (%s): choose one with \"port\"", len(names), strings.Join(names, ", "))
	}
	return 0, fmt.Errorf("%w %q, only %s", errNoPort, s.cfg.Port, strings.Join(names, ", "))
}
