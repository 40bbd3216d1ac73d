package upstream

import (
	"errors"
	"fmt"
	"slices"

	"github.com/headpond/headpond/pool"
)

// Action is an operator's change of one endpoint.
type Action string

// The actions of a Change.
const (
	AddEndpoint    Action = "add"    // use the endpoint, even if it is not in the set; also undoes DrainEndpoint and RemoveEndpoint
	DrainEndpoint  Action = "drain"  // no new leases; existing ones end by themselves, or after RemovedTimeout. Used if no other is left
	RemoveEndpoint Action = "remove" // no more leases; OnRemoved says what happens to existing ones
	WeighEndpoint  Action = "weight" // use another weight than the set's
)

// Actions returns all actions.
func Actions() []Action { return []Action{AddEndpoint, DrainEndpoint, RemoveEndpoint, WeighEndpoint} }

// Change is one action of an operator; see Upstream.ChangeEndpoint.
type Change struct {
	Action Action
	// Endpoint is the endpoint to change, identified by its Address. AddEndpoint of an endpoint that is not in the set
	// uses all fields; AddEndpoint and WeighEndpoint use the Weight, 0 = as in the set.
	Endpoint Endpoint
	// Keep is copied to the Override.
	Keep bool
}

// Out says why an Override keeps an endpoint out of use.
type Out string

// Values of Override.Out.
const (
	InUse   Out = ""
	Drained Out = "drained"
	Removed Out = "removed"
)

// Override holds the operators' changes of one endpoint. It applies to every set of the Settings or the Source, until
// it is undone.
type Override struct {
	Endpoint      // Priority, Zone and Metadata apply if it is Added and not in the set; Weight 0 = as in the set
	Added    bool // use the endpoint even if it is not in the set
	Out      Out
	Keep     bool // for the code that makes Settings: keep the override with the next configuration. The Upstream ignores it
}

// Errors of ChangeEndpoint.
var (
	ErrUnknownEndpoint = errors.New("upstream: there is no such endpoint")
	ErrLastEndpoint    = errors.New("upstream: it is the last endpoint in use; add another one first")
	ErrEndpointInUse   = errors.New("upstream: the endpoint is in use already")
)

// ChangeEndpoint changes one endpoint. The change lasts until another change, or an Update with other Overrides, undoes
// it. The Source continues to set the other endpoints, and does not undo the change. Errors wrap ErrUnknownEndpoint,
// ErrLastEndpoint, ErrEndpointInUse, ErrConfig or pool.ErrClosed; on an error nothing changes. Repeating a change that
// is in force is no error, except for AddEndpoint.
func (u *Upstream[T]) ChangeEndpoint(c Change) error {
	u.updating.Lock()
	defer u.updating.Unlock()
	if u.closed {
		return fmt.Errorf("upstream %q: change of endpoint %s: %w", u.cfg.Name, c.Endpoint.Address, pool.ErrClosed)
	}
	next, err := changed(u.list, u.settings.Overrides, c)
	if err != nil {
		return fmt.Errorf("upstream %q: endpoint %q: %w", u.cfg.Name, c.Endpoint.Address, err)
	}
	s, before := u.settings, overrideOf(u.settings.Overrides, c.Endpoint.Address)
	s.Overrides = next
	if err := u.apply(s, u.list, byOperator); err != nil {
		return err
	}
	u.settings = s
	if c.Action == RemoveEndpoint && s.OnRemoved == CloseRemoved && before != nil && before.Out == Drained {
		u.interruptLeaving(c.Endpoint.Address)
	}
	return nil
}

// interruptLeaving interrupts the leases of an endpoint that was drained and is now removed.
func (u *Upstream[T]) interruptLeaving(address string) {
	for _, e := range u.leaving() {
		if e.addr == address {
			e.pools.interrupt(func(v T) { u.cfg.Interrupt(v, ErrRemoved) })
		}
	}
}

// Overrides returns the overrides in force, in the order in which the endpoints were first changed.
func (u *Upstream[T]) Overrides() []Override {
	u.updating.Lock()
	defer u.updating.Unlock()
	return slices.Clone(u.settings.Overrides)
}

// EndpointNames returns the addresses that ChangeEndpoint accepts: those in the set, and those with an Override.
func (u *Upstream[T]) EndpointNames() (names []string) {
	u.updating.Lock()
	defer u.updating.Unlock()
	for _, e := range u.list {
		names = append(names, e.Address)
	}
	for _, o := range u.settings.Overrides {
		if !slices.Contains(names, o.Address) {
			names = append(names, o.Address)
		}
	}
	return names
}

// changed returns overrides with one more change applied; reported is the set without overrides. It modifies neither.
func changed(reported []Endpoint, overrides []Override, c Change) ([]Override, error) {
	if !slices.Contains(Actions(), c.Action) {
		return nil, fmt.Errorf("%w: action %q is unknown", ErrConfig, c.Action)
	}
	if err := verifyEndpoints([]Endpoint{c.Endpoint}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	address := c.Endpoint.Address
	isReported := slices.ContainsFunc(reported, func(e Endpoint) bool { return e.Address == address })
	o := Override{Endpoint: Endpoint{Address: address}}
	next := slices.Clone(overrides)
	i := slices.IndexFunc(next, func(o Override) bool { return o.Address == address })
	if i >= 0 {
		o = next[i]
	} else if !isReported && c.Action != AddEndpoint {
		return nil, ErrUnknownEndpoint
	} else {
		i, next = len(next), append(next, o)
	}
	if err := o.take(c, isReported); err != nil {
		return nil, err
	}
	if next[i] = o; !o.Added && o.Out == InUse && o.Weight == 0 {
		next = slices.Delete(next, i, i+1)
	}
	in, drained, _ := overridden(reported, next)
	switch {
	case len(in) == 0 && (c.Action == DrainEndpoint || c.Action == RemoveEndpoint):
		return nil, ErrLastEndpoint
	case len(in)+len(drained) > MaxEndpoints || len(next) > MaxEndpoints:
		return nil, fmt.Errorf("%w: at most %d endpoints are possible", ErrConfig, MaxEndpoints)
	}
	return next, nil
}

// take applies a change to o. isReported says that the set without overrides has the endpoint.
func (o *Override) take(c Change, isReported bool) error {
	switch c.Action {
	case AddEndpoint:
		switch {
		case o.Out == InUse && (isReported || o.Added):
			return ErrEndpointInUse
		case isReported && (c.Endpoint.Priority != 0 || c.Endpoint.Zone != ""):
			return fmt.Errorf("%w: priority and zone come from the endpoint's source or the configuration, and cannot be changed here", ErrConfig)
		}
		o.Out = InUse
		if c.Endpoint.Weight > 0 {
			o.Weight = c.Endpoint.Weight
		}
		if !isReported && !o.Added {
			o.Added, o.Priority, o.Zone, o.Metadata = true, c.Endpoint.Priority, c.Endpoint.Zone, c.Endpoint.Metadata
		}
	case DrainEndpoint:
		o.Out = Drained
	case RemoveEndpoint:
		if o.Out = Removed; !isReported { // the override has no effect any more
			*o = Override{Endpoint: Endpoint{Address: o.Address}}
		}
	case WeighEndpoint:
		o.Weight = c.Endpoint.Weight
		c.Keep = c.Keep || o.Keep // keep a drain that was to be kept
	}
	o.Keep = c.Keep
	return nil
}

// overridden applies overrides to the set reported. It returns the endpoints in use, in the order of reported and then of
// overrides; the drained endpoints; and the endpoints of reported that are removed.
func overridden(reported []Endpoint, overrides []Override) (in, drained, removed []Endpoint) {
	if len(overrides) == 0 {
		return reported, nil, nil
	}
	by := make(map[string]*Override, len(overrides))
	for i := range overrides {
		by[overrides[i].Address] = &overrides[i]
	}
	put := func(e Endpoint, o *Override) {
		switch {
		case o == nil || o.Out == InUse:
			in = append(in, e)
		case o.Out == Drained:
			drained = append(drained, e)
		default:
			removed = append(removed, e)
		}
	}
	for _, e := range reported {
		o := by[e.Address]
		if o != nil && o.Weight > 0 {
			e.Weight = o.Weight
		}
		put(e, o)
		delete(by, e.Address)
	}
	for i := range overrides {
		if o := &overrides[i]; o.Added && by[o.Address] != nil {
			put(o.Endpoint, o)
		}
	}
	return in, drained, removed
}

// inForce returns the endpoints to use. If all are drained or removed, it returns the drained ones; if all are removed,
// it returns those.
func inForce(reported []Endpoint, overrides []Override) []Endpoint {
	in, drained, removed := overridden(reported, overrides)
	switch {
	case len(in) > 0:
		return in
	case len(drained) > 0:
		return drained
	}
	return removed
}

// overrideOf returns the override for an address, nil if there is none.
func overrideOf(overrides []Override, address string) *Override {
	if i := slices.IndexFunc(overrides, func(o Override) bool { return o.Address == address }); i >= 0 {
		return &overrides[i]
	}
	return nil
}

// String returns the change in one word: "added", "drained", "removed" or "weight".
func (o *Override) String() string {
	switch {
	case o.Out != InUse:
		return string(o.Out)
	case o.Added:
		return "added"
	}
	return "weight"
}
