package admin

import (
	"fmt"
	"net/http"

	"github.com/headpond/headpond/upstream"
)

// EndpointAction is a change of an endpoint.
type EndpointAction = upstream.Action

// The actions of an EndpointChange.
const (
	AddEndpoint    = upstream.AddEndpoint
	DrainEndpoint  = upstream.DrainEndpoint
	RemoveEndpoint = upstream.RemoveEndpoint
	WeighEndpoint  = upstream.WeighEndpoint
)

// EndpointActions returns all actions.
func EndpointActions() []EndpointAction { return upstream.Actions() }

// Limits of the numbers of an EndpointChange.
const (
	MaxWeight   = upstream.MaxWeight
	MaxPriority = 65535 // as in the configuration
)

// EndpointChange is the body of POST /api/v1/endpoints.
type EndpointChange struct {
	Upstream string         `json:"upstream"`
	Address  string         `json:"address"`
	Action   EndpointAction `json:"action"`             // add, drain, remove or weight
	Weight   int            `json:"weight,omitempty"`   // for add and weight; 0: as the source or the configuration has it, or 1
	Priority int            `json:"priority,omitempty"` // for add
	Zone     string         `json:"zone,omitempty"`     // for add
	Keep     bool           `json:"keep,omitempty"`     // over reloads
}

// changeEndpoint answers 200 when the change is in force, 400 to an invalid change, 404 where there is no such upstream
// or endpoint, and 422 when it was refused.
func (h *handler) changeEndpoint(w http.ResponseWriter, r *http.Request) {
	var c EndpointChange
	if err := readBody(w, r, &c); err != nil {
		writeJSON(w, http.StatusBadRequest, result{Error: fmt.Sprintf("the body is no change of an endpoint: %v", err)})
		return
	}
	writeResult(w, h.cfg.ChangeEndpoint(c.Upstream, upstream.Change{
		Action: c.Action, Endpoint: upstream.Endpoint{Address: c.Address, Weight: c.Weight, Priority: c.Priority, Zone: c.Zone}, Keep: c.Keep,
	}))
}
